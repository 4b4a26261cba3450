// A client of Go's standard library and one stock codec.

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/rpc"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/ugorji/go/codec"
)

// dial connects with the certificate NAME.pem of a folder that `sealwire dev` made.
func dial(address, folder, name string) (*rpc.Client, error) {
	authority, err := os.ReadFile(filepath.Join(folder, "ca.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, errors.New("no authority in ca.pem")
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, name+".pem"), filepath.Join(folder, name+"-key.pem"))
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "localhost"}
	conn, err := tls.Dial("tcp", address, config)
	if err != nil {
		return nil, err
	}
	// The notification [2, "errors", ["text"]], before any request.
	if _, err := conn.Write([]byte("\x93\x02\xa6errors\x91\xa4text")); err != nil {
		return nil, err
	}
	return rpc.NewClientWithCodec(codec.MsgpackSpecRpc.ClientCodec(conn, handle())), nil
}

// handle returns a configuration that keeps strings and binary apart.
func handle() *codec.MsgpackHandle {
	handle := new(codec.MsgpackHandle)
	handle.WriteExt = true
	handle.MapType = reflect.TypeOf(map[string]any(nil))
	return handle
}

// split takes the text of an error apart. The hints are a JSON object, or empty.
func split(text string) (code, message, hints string) {
	text, hints, _ = strings.Cut(text, "\t")
	code, message, _ = strings.Cut(text, ": ")
	return code, message, hints
}
