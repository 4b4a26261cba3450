module sealwire-relay-clients

go 1.26
