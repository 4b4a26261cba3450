// Seals and opens envelopes of suite p256-mlkem768 with the standard library, for proto/interop/check.py.
//
// Reads a JSON object per line and answers with one. Byte strings are hexadecimal, an envelope is binary:
// {"op": "seal", "key", "app", "context", "datatype", "plaintext"} gives {"envelope"}, and
// {"op": "open", "key", "app", "context", "envelope"}, whose sequence is 0, gives {"datatype", "plaintext"} or {"refused"}.
package main

import (
	"bytes"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
)

const (
	prefix     = "SW\x01"
	suite      = 4
	inline     = 1
	headerSize = 27
	encSize    = 1153
)

type octets []byte

func (o *octets) UnmarshalJSON(text []byte) error {
	var digits string
	if err := json.Unmarshal(text, &digits); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(digits)
	*o = decoded
	return err
}

func (o octets) MarshalJSON() ([]byte, error) { return json.Marshal(hex.EncodeToString(o)) }

type request struct {
	Op, App                           string
	Key, Context, Plaintext, Envelope octets
	Datatype                          byte
}

type response struct {
	Envelope  octets `json:"envelope,omitempty"`
	Datatype  byte   `json:"datatype"`
	Plaintext octets `json:"plaintext"`
	Refused   string `json:"refused,omitempty"`
}

// header returns everything before the body, for an encapsulation under a key.
func header(key hpke.PublicKey, enc []byte) []byte {
	id := sha256.Sum256(append([]byte("sealwire/key-id/1\x04"), key.Bytes()...))
	named := append([]byte{suite}, id[:5]...)
	digest := sha256.Sum256(append(append([]byte("sealwire/header/1"), named...), enc...))
	whole := append([]byte(prefix), named...)
	whole = append(append(whole, digest[:20]...), inline)
	return append(append(whole, enc...), 0, 0)
}

func info(app string) []byte { return []byte("sealwire/1" + app) }

func seal(ask request, key hpke.PrivateKey) (response, error) {
	enc, sender, err := hpke.NewSender(key.PublicKey(), hpke.HKDFSHA256(), hpke.AES256GCM(), info(ask.App))
	if err != nil {
		return response{}, err
	}
	sealed, err := sender.Seal(append([]byte{ask.Datatype}, ask.Context...), ask.Plaintext)
	if err != nil {
		return response{}, err
	}
	envelope := append(header(key.PublicKey(), enc), ask.Datatype)
	envelope = append(binary.BigEndian.AppendUint32(envelope, 0), sealed...)
	return response{Envelope: envelope}, nil
}

func open(ask request, key hpke.PrivateKey) (response, error) {
	body := len(prefix) + headerSize + encSize + 2
	if len(ask.Envelope) < body+5 {
		return response{}, errors.New("too short")
	}
	enc := ask.Envelope[len(prefix)+headerSize:][:encSize]
	if !bytes.Equal(ask.Envelope[:body], header(key.PublicKey(), enc)) {
		return response{}, errors.New("another header")
	}
	datatype, sequence := ask.Envelope[body], binary.BigEndian.Uint32(ask.Envelope[body+1:])
	if sequence != 0 {
		return response{}, errors.New("crypto/hpke opens in order")
	}
	recipient, err := hpke.NewRecipient(enc, key, hpke.HKDFSHA256(), hpke.AES256GCM(), info(ask.App))
	if err != nil {
		return response{}, err
	}
	plaintext, err := recipient.Open(append([]byte{datatype}, ask.Context...), ask.Envelope[body+5:])
	return response{Datatype: datatype, Plaintext: plaintext}, err
}

func main() {
	asks, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var ask request
		if err := asks.Decode(&ask); err == io.EOF {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		key, err := hpke.MLKEM768P256().NewPrivateKey(ask.Key)
		if err != nil {
			log.Fatal(err)
		}
		answer, err := map[string]func(request, hpke.PrivateKey) (response, error){"seal": seal, "open": open}[ask.Op](ask, key)
		if err != nil {
			answer = response{Refused: err.Error()}
		}
		if err := answers.Encode(answer); err != nil {
			log.Fatal(err)
		}
	}
}
