// Seals and opens envelopes of suite p256-psk with github.com/cloudflare/circl, for proto/interop/check.py.
//
// Reads a JSON object per line and answers with one. Byte strings are hexadecimal, envelopes are binary:
// {"op": "seal", "key", "app", "context", "fields": [{"datatype", "plaintext"}]} gives {"envelopes": [..]}, and
// {"op": "open", "key", "app", "context", "envelopes": [..]}, which are those of one request from its first on, gives
// {"fields": [..]} or {"refused"}. The key is the seed of a key version.
package main

import (
	"bytes"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"

	"github.com/cloudflare/circl/hpke"
	"github.com/cloudflare/circl/kem"
)

const (
	prefix     = "SW\x01"
	suite      = 5
	headerSize = 39
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

type field struct {
	Datatype  byte   `json:"datatype"`
	Plaintext octets `json:"plaintext"`
}

type request struct {
	Op, App      string
	Key, Context octets
	Fields       []field
	Envelopes    []octets
}

type response struct {
	Envelopes []octets `json:"envelopes,omitempty"`
	Fields    []field  `json:"fields,omitempty"`
	Refused   string   `json:"refused,omitempty"`
}

// key is what a seed gives.
type key struct {
	private   kem.PrivateKey
	public    kem.PublicKey
	id        []byte
	psk       []byte
	pskID     []byte
	algorithm hpke.Suite
}

func expand(seed []byte, label string) ([]byte, error) {
	return hkdf.Expand(sha256.New, seed, label+string([]byte{suite}), 32)
}

func newKey(seed []byte) (*key, error) {
	ikm, err := expand(seed, "sealwire/psk-key/1")
	if err != nil {
		return nil, err
	}
	psk, err := expand(seed, "sealwire/psk/1")
	if err != nil {
		return nil, err
	}
	public, private := hpke.KEM_P256_HKDF_SHA256.Scheme().DeriveKeyPair(ikm)
	point, err := public.MarshalBinary()
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(append([]byte("sealwire/key-id/1\x05"), point...))
	id := digest[:5]
	algorithm := hpke.NewSuite(hpke.KEM_P256_HKDF_SHA256, hpke.KDF_HKDF_SHA256, hpke.AEAD_AES256GCM)
	return &key{private, public, id, psk, append([]byte("sealwire/psk-id/1"), id...), algorithm}, nil
}

// header returns everything before the body, for an ephemeral key of 65 bytes.
func (k *key) header(enc []byte) []byte {
	whole := append([]byte(prefix), suite)
	whole = append(append(whole, k.id...), 2|enc[64]&1)
	return append(whole, enc[1:33]...)
}

// uncompressed returns the 65 bytes of a compressed point.
func uncompressed(point []byte) ([]byte, error) {
	x, y := elliptic.UnmarshalCompressed(elliptic.P256(), point)
	if x == nil {
		return nil, errors.New("no point")
	}
	return elliptic.Marshal(elliptic.P256(), x, y), nil
}

func info(app string) []byte { return []byte("sealwire/1" + app) }

func seal(ask request, key *key) (response, error) {
	sender, err := key.algorithm.NewSender(key.public, info(ask.App))
	if err != nil {
		return response{}, err
	}
	enc, sealer, err := sender.SetupPSK(nil, key.psk, key.pskID)
	if err != nil {
		return response{}, err
	}
	var told response
	for sequence, field := range ask.Fields {
		sealed, err := sealer.Seal(field.Plaintext, append([]byte{field.Datatype}, ask.Context...))
		if err != nil {
			return response{}, err
		}
		envelope := append(key.header(enc), field.Datatype)
		envelope = binary.BigEndian.AppendUint32(envelope, uint32(sequence))
		told.Envelopes = append(told.Envelopes, append(envelope, sealed...))
	}
	return told, nil
}

func open(ask request, key *key) (response, error) {
	var told response
	var opener hpke.Opener
	var header []byte
	for number, envelope := range ask.Envelopes {
		body := len(prefix) + headerSize
		if len(envelope) < body+5 || string(envelope[:4]) != prefix+"\x05" || !bytes.Equal(envelope[4:9], key.id) {
			return response{}, errors.New("no envelope of this key")
		}
		if number == 0 {
			enc, err := uncompressed(envelope[9:body])
			if err != nil {
				return response{}, err
			}
			receiver, err := key.algorithm.NewReceiver(key.private, info(ask.App))
			if err != nil {
				return response{}, err
			}
			if opener, err = receiver.SetupPSK(enc, key.psk, key.pskID); err != nil {
				return response{}, err
			}
			header = envelope[:body]
		}
		datatype, sequence := envelope[body], binary.BigEndian.Uint32(envelope[body+1:])
		if !bytes.Equal(envelope[:body], header) || sequence != uint32(number) {
			return response{}, errors.New("circl opens the fields of one request in order")
		}
		plaintext, err := opener.Open(envelope[body+5:], append([]byte{datatype}, ask.Context...))
		if err != nil {
			return response{}, err
		}
		told.Fields = append(told.Fields, field{datatype, plaintext})
	}
	return told, nil
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
		own, err := newKey(ask.Key)
		if err != nil {
			log.Fatal(err)
		}
		run := map[string]func(request, *key) (response, error){"seal": seal, "open": open}[ask.Op]
		answer, err := run(ask, own)
		if err != nil {
			answer = response{Refused: err.Error()}
		}
		if err := answers.Encode(answer); err != nil {
			log.Fatal(err)
		}
	}
}
