package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stunserver"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// startRelay starts DERP and STUN and sets the map that tells nodes of them.
func (s *server) startRelay(ctx context.Context) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(s.ip, strconv.Itoa(s.derpPort)))
	if err != nil {
		return err
	}
	relay := derpserver.New(key.NewNode(), func(string, ...any) {})
	// httptest brings a self-signed certificate, which the map below tells nodes to take.
	web := httptest.NewUnstartedServer(derpserver.Handler(relay))
	web.Listener.Close()
	web.Listener = listener
	web.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} // DERP hijacks: no HTTP/2
	web.StartTLS()
	stun := stunserver.New(ctx)
	if err := stun.Listen(net.JoinHostPort(s.ip, strconv.Itoa(s.stunPort))); err != nil {
		return err
	}
	go stun.Serve()
	s.relay = &tailcfg.DERPMap{Regions: map[int]*tailcfg.DERPRegion{1: {
		RegionID:   1,
		RegionCode: "sandbox",
		RegionName: "Sandbox",
		Nodes: []*tailcfg.DERPNode{{
			Name:             "1a",
			RegionID:         1,
			HostName:         s.ip,
			IPv4:             s.ip,
			IPv6:             "none",
			DERPPort:         s.derpPort,
			STUNPort:         s.stunPort,
			STUNTestIP:       s.ip,
			InsecureForTests: true,
		}},
	}}}
	return nil
}
