package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

	"golang.org/x/net/http2"
	"tailscale.com/control/controlhttp/controlhttpserver"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

type machineKey struct{}

// controlHandler is what nodes talk to: the server's key in the clear, everything else inside Noise.
func (s *server) controlHandler() http.Handler {
	inside := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		machine := r.Context().Value(machineKey{}).(key.MachinePublic)
		switch r.URL.Path {
		case "/machine/register":
			s.register(w, r, machine)
		case "/machine/map":
			s.mapRequest(w, r, machine)
		default: // update-health, set-device-attr, audit-log and the like: taken and forgotten
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusNoContent)
		}
	})
	mux := http.NewServeMux()
	mux.HandleFunc("/generate_204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/key", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(&tailcfg.OverTLSPublicKeyResponse{LegacyPublicKey: s.noise.Public(), PublicKey: s.noise.Public()})
	})
	mux.HandleFunc("/ts2021", func(w http.ResponseWriter, r *http.Request) {
		conn, err := controlhttpserver.AcceptHTTP(r.Context(), w, r, s.noise, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		// A node whose cable is cut says nothing: the pings find out.
		h2 := http2.Server{ReadIdleTimeout: s.pingEvery, PingTimeout: s.pingEvery}
		h2.ServeConn(conn, &http2.ServeConnOpts{
			Context:    context.WithValue(r.Context(), machineKey{}, conn.Peer()),
			BaseConfig: &http.Server{Handler: inside},
		})
	})
	return mux
}
