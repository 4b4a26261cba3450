module sealwire-interop

go 1.24

require github.com/ugorji/go/codec v1.3.2
