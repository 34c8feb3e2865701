package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
	"tailscale.com/util/rands"
)

// register answers a node that logs in, logs out, or starts again.
func (s *server) register(w http.ResponseWriter, r *http.Request, machine key.MachinePublic) {
	var req tailcfg.RegisterRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if req.Followup != "" { // it waits for somebody to visit the login URL: nobody ever does here
		<-r.Context().Done()
		return
	}
	res := tailcfg.RegisterResponse{
		MachineAuthorized: true,
	}
	s.mu.Lock()
	what := s.decide(&req, &res, machine)
	user := tailcfg.UserID(1)
	if n := s.byNodeKey(req.NodeKey); n != nil {
		user = n.data.User
	}
	res.User = tailcfg.User{ID: user, DisplayName: s.logins[user]}
	res.Login = tailcfg.Login{ID: tailcfg.LoginID(user), Provider: "sandbox", LoginName: s.logins[user], DisplayName: s.logins[user]}
	s.changed()
	s.mu.Unlock()
	log.Printf("register %s old=%s new=%s: %s", req.Hostinfo.Hostname, req.OldNodeKey.ShortString(), req.NodeKey.ShortString(), what)
	json.NewEncoder(w).Encode(res)
}

// decide fills the answer to a registration and returns a word on it for the log. mu is held.
func (s *server) decide(req *tailcfg.RegisterRequest, res *tailcfg.RegisterResponse, machine key.MachinePublic) string {
	n := s.byNodeKey(req.NodeKey)
	if n != nil && n.data.Machine != machine {
		n = nil
	}
	secret := ""
	if req.Auth != nil {
		secret = req.Auth.AuthKey
	}
	switch {
	case n != nil && !req.Expiry.IsZero() && req.Expiry.Before(time.Now()):
		n.data.KeyExpiry = req.Expiry
		if n.ephemeral {
			delete(s.nodes, n.data.ID)
		}
		return "logout"
	case n != nil && !n.expired(): // a known node needs no auth key, and a good one changes nothing; a bad one does
		if _, refusal := s.goodKey(secret); secret != "" && refusal != "" && s.strictKeys {
			res.Error = refusal
			return refusal
		}
		return "refresh"
	case n != nil && secret == "":
		res.NodeKeyExpired = true
		return "expired"
	case secret == "":
		res.AuthURL = fmt.Sprintf("http://%s/a/%s", net.JoinHostPort(s.ip, s.port), rands.HexString(12))
		return "needs login"
	}
	k, refusal := s.goodKey(secret)
	if refusal != "" {
		res.Error = refusal
		return refusal
	}
	k.used = true
	return s.admit(req, k, machine)
}

// admit makes a new node, or gives a node of the same machine its new key; id and addresses stay. mu is held.
func (s *server) admit(req *tailcfg.RegisterRequest, k *authKey, machine key.MachinePublic) string {
	what := "rekey"
	n := s.byMachine(machine)
	if n == nil {
		what = "new"
		s.last++
		v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, byte(s.last >> 8), byte(s.last)}), 32)
		addresses := []netip.Prefix{v4, netip.PrefixFrom(tsaddr.Tailscale4To6(v4.Addr()), 128)}
		n = &node{
			data: tailcfg.Node{
				ID:         s.last,
				StableID:   tailcfg.StableNodeID(fmt.Sprintf("nSBOX%05d", s.last)),
				Machine:    machine,
				Addresses:  addresses,
				AllowedIPs: addresses,
				Created:    time.Now(),
			},
			streams: map[chan struct{}]bool{},
		}
		s.nodes[s.last] = n
	}
	n.data.Key, n.authKeyID, n.ephemeral = req.NodeKey, k.id, k.ephemeral || req.Ephemeral
	n.data.User = s.userOf(cmp.Or(k.owner, firstUser))
	n.data.Tags, n.data.MachineAuthorized, n.data.Expired = k.tags, true, false
	n.data.KeyExpiry = time.Now().Add(s.nodeTTL)
	if len(k.tags) > 0 || n.noExpiry {
		n.data.KeyExpiry = time.Time{}
	}
	n.data.Hostinfo = req.Hostinfo.View()
	s.rename(n, req.Hostinfo.Hostname)
	n.offlineAt = time.Now()
	return what
}

// rename gives a node the name that its host name leads to. mu is held.
func (s *server) rename(n *node, hostname string) {
	n.data.Name = s.uniqueName(hostname, n.data.ID)
	n.data.ComputedName, _, _ = strings.Cut(n.data.Name, ".")
}
