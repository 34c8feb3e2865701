package main

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"tailscale.com/net/tsaddr"
)

func (s *server) routeDevices(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v2/tailnet/{tailnet}/devices", s.listDevices)
	mux.HandleFunc("POST /api/v2/tailnet/{tailnet}/acl", s.setPolicy)
	mux.HandleFunc("GET /api/v2/device/{id}", s.oneDevice(func(w http.ResponseWriter, _ *http.Request, n *node) {
		answer(w, describeDevice(n))
	}))
	mux.HandleFunc("DELETE /api/v2/device/{id}", s.oneDevice(func(_ http.ResponseWriter, _ *http.Request, n *node) {
		n.wake() // its polls see that it is gone, and end
		delete(s.nodes, n.data.ID)
	}))
	mux.HandleFunc("POST /api/v2/device/{id}/expire", s.oneDevice(func(_ http.ResponseWriter, _ *http.Request, n *node) {
		n.data.KeyExpiry = time.Now().Add(-time.Second)
	}))
	mux.HandleFunc("POST /api/v2/device/{id}/key", s.oneDevice(s.setKeyExpiry))
	mux.HandleFunc("POST /api/v2/device/{id}/ip", s.oneDevice(setAddress))
}

func (s *server) listDevices(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []any{}
	for _, id := range sortedKeys(s.nodes) {
		list = append(list, describeDevice(s.nodes[id]))
	}
	answer(w, map[string]any{"devices": list})
}

// oneDevice finds the node that the path names (either id will do), calls do with mu held, and tells all peers.
func (s *server) oneDevice(do func(http.ResponseWriter, *http.Request, *node)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range s.nodes {
			if id := r.PathValue("id"); id == string(n.data.StableID) || id == strconv.Itoa(int(n.data.ID)) {
				do(w, r, n)
				s.changed()
				return
			}
		}
		refuse(w, http.StatusNotFound, "no such device")
	}
}

func (s *server) setKeyExpiry(w http.ResponseWriter, r *http.Request, n *node) {
	var q struct{ KeyExpiryDisabled bool }
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	n.noExpiry = q.KeyExpiryDisabled
	n.data.KeyExpiry = time.Now().Add(s.nodeTTL)
	if n.noExpiry {
		n.data.KeyExpiry = time.Time{}
	}
}

func setAddress(w http.ResponseWriter, r *http.Request, n *node) {
	var q struct{ IPv4 netip.Addr }
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || !q.IPv4.Is4() {
		refuse(w, http.StatusBadRequest, "ipv4 is not an IPv4 address")
		return
	}
	addresses := []netip.Prefix{netip.PrefixFrom(q.IPv4, 32), netip.PrefixFrom(tsaddr.Tailscale4To6(q.IPv4), 128)}
	n.data.Addresses, n.data.AllowedIPs = addresses, addresses
}

func describeDevice(n *node) map[string]any {
	var addresses []string
	for _, prefix := range n.data.Addresses {
		addresses = append(addresses, prefix.Addr().String())
	}
	return map[string]any{
		"id":                 strconv.Itoa(int(n.data.ID)),
		"nodeId":             n.data.StableID,
		"hostname":           n.data.Hostinfo.Hostname(),
		"name":               strings.TrimSuffix(n.data.Name, "."),
		"addresses":          addresses,
		"authorized":         n.data.MachineAuthorized,
		"tags":               n.data.Tags,
		"keyExpiryDisabled":  n.data.KeyExpiry.IsZero(),
		"expires":            n.data.KeyExpiry,
		"created":            n.data.Created,
		"isEphemeral":        n.ephemeral,
		"nodeKey":            n.data.Key.String(),
		"machineKey":         n.data.Machine.String(),
		"connectedToControl": n.online(),
		"lastSeen":           n.offlineAt,
		"os":                 n.data.Hostinfo.OS(),
		"clientVersion":      n.data.Hostinfo.IPNVersion(),
		"authKeyId":          n.authKeyID, // not in Tailscale's answer: shows which key a node joined by
	}
}
