module sealwire-interop

go 1.19

require github.com/ugorji/go/codec v1.2.12
