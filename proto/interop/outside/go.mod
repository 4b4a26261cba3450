module sealwire-outside

go 1.26
