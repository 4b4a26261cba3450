module sealwire-relay-readers

go 1.21
