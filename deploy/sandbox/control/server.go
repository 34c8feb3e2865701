package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// firstUser owns what nobody else is named for.
const firstUser = "user@example.net"

// server is the whole state. Methods say when mu has to be held.
type server struct {
	config
	noise key.MachinePrivate
	relay *tailcfg.DERPMap

	mu     sync.Mutex
	nodes  map[tailcfg.NodeID]*node
	keys   []*authKey
	logins map[tailcfg.UserID]string // users, by id
	policy policy
	last   tailcfg.NodeID
}

// node is one device, and who currently listens for it.
type node struct {
	data      tailcfg.Node
	ephemeral bool
	noExpiry  bool
	streams   map[chan struct{}]bool // one per map poll that is open
	offlineAt time.Time              // when the last of them ended
	authKeyID string                 // the auth key that it joined by
}

func newServer(c config) *server {
	return &server{config: c, nodes: map[tailcfg.NodeID]*node{}, logins: map[tailcfg.UserID]string{1: firstUser}, noise: key.NewMachine()}
}

func (n *node) online() bool { return len(n.streams) > 0 }

func (n *node) expired() bool {
	return !n.data.KeyExpiry.IsZero() && n.data.KeyExpiry.Before(time.Now())
}

// wake makes the node's map polls look at the state again.
func (n *node) wake() {
	for stream := range n.streams {
		select {
		case stream <- struct{}{}:
		default: // it is about to look anyway
		}
	}
}

// changed wakes every map poll. mu is held.
func (s *server) changed() {
	for _, n := range s.nodes {
		n.wake()
	}
}

// byNodeKey finds a node by its key; nil if there is none. mu is held.
func (s *server) byNodeKey(k key.NodePublic) *node {
	for _, n := range s.nodes {
		if n.data.Key == k {
			return n
		}
	}
	return nil
}

// byMachine finds a node by its machine's key; nil if there is none. mu is held.
func (s *server) byMachine(k key.MachinePublic) *node {
	for _, n := range s.nodes {
		if n.data.Machine == k {
			return n
		}
	}
	return nil
}

// uniqueName is the full name for a host name: with -1, -2, ... while another node has it. mu is held.
func (s *server) uniqueName(hostname string, self tailcfg.NodeID) string {
	for i := 0; ; i++ {
		name := hostname
		if i > 0 {
			name = fmt.Sprintf("%s-%d", hostname, i)
		}
		if s.domain != "" {
			name += "." + s.domain + "."
		}
		taken := false
		for id, n := range s.nodes {
			taken = taken || (id != self && n.data.Name == name)
		}
		if !taken {
			return name
		}
	}
}

// seenByOthers is a node as its peers get it. mu is held.
func (s *server) seenByOthers(n *node) *tailcfg.Node {
	seen := n.data.Clone()
	online := n.online()
	seen.Online = &online
	if !online {
		at := n.offlineAt.UTC().Round(time.Second)
		seen.LastSeen = &at
	}
	seen.Expired = n.expired()
	return seen
}

// expireForever removes ephemeral nodes that are gone, and tells peers when a node's key has run out.
func (s *server) expireForever() {
	for range time.Tick(200 * time.Millisecond) {
		s.mu.Lock()
		dirty := false
		for id, n := range s.nodes {
			if n.ephemeral && !n.online() && time.Since(n.offlineAt) > s.ephemeralTTL {
				delete(s.nodes, id)
				dirty = true
			}
			if expired := n.expired(); expired != n.data.Expired {
				n.data.Expired = expired
				dirty = true
			}
		}
		if dirty {
			s.changed()
		}
		s.mu.Unlock()
	}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
