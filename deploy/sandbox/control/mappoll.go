package main

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
	"tailscale.com/types/opt"
	"tailscale.com/util/zstdframe"
)

const keepAliveEvery = 30 * time.Second

// mapRequest takes a node's news about itself, or keeps it informed about its peers until it hangs up.
func (s *server) mapRequest(w http.ResponseWriter, r *http.Request, machine key.MachinePublic) {
	var req tailcfg.MapRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	n := s.byNodeKey(req.NodeKey)
	if n == nil || n.data.Machine != machine {
		s.mu.Unlock()
		http.Error(w, "node not found", http.StatusNotFound)
		return
	}
	if !req.Stream {
		s.update(n, &req)
		s.changed()
		s.mu.Unlock()
		w.WriteHeader(http.StatusOK)
		return
	}
	wake := make(chan struct{}, 1)
	n.streams[wake] = true
	s.changed()
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(n.streams, wake)
		n.offlineAt = time.Now()
		s.changed()
		s.mu.Unlock()
	}()
	p := &poll{server: s, node: n, nodeKey: req.NodeKey, compress: req.Compress != "", w: w, sent: map[tailcfg.NodeID]*tailcfg.Node{}}
	p.run(r, wake)
}

// update takes what a node says about itself. mu is held.
func (s *server) update(n *node, req *tailcfg.MapRequest) {
	n.data.Endpoints, n.data.DiscoKey, n.data.Cap = req.Endpoints, req.DiscoKey, req.Version
	if h := req.Hostinfo; h != nil {
		n.data.Hostinfo = h.View()
		if h.NetInfo != nil && h.NetInfo.PreferredDERP != 0 {
			n.data.HomeDERP = h.NetInfo.PreferredDERP
		}
		s.rename(n, h.Hostname)
	}
}

// poll is one open map request, and what its node has been told so far.
type poll struct {
	server   *server
	node     *node
	nodeKey  key.NodePublic
	compress bool
	w        http.ResponseWriter
	self     string
	filter   string
	profiles string
	sent     map[tailcfg.NodeID]*tailcfg.Node
	started  bool
}

func (p *poll) run(r *http.Request, wake <-chan struct{}) {
	ticker := time.NewTicker(keepAliveEvery)
	defer ticker.Stop()
	for {
		news, over := p.next()
		if over || (news != nil && !p.send(news)) {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-wake:
		case <-ticker.C:
			if !p.send(&tailcfg.MapResponse{KeepAlive: true}) {
				return
			}
		}
	}
}

// next is what has changed since the last answer; nil if nothing has. over: the node is gone or has another key.
func (p *poll) next() (news *tailcfg.MapResponse, over bool) {
	s := p.server
	m := &tailcfg.MapResponse{}
	s.mu.Lock()
	if s.nodes[p.node.data.ID] != p.node || p.node.data.Key != p.nodeKey {
		s.mu.Unlock()
		return nil, true
	}
	if self := asJSON(p.node.data); self != p.self {
		p.self, m.Node = self, p.node.data.Clone()
	}
	if filter := s.filterFor(p.node); asJSON(filter) != p.filter {
		p.filter, m.PacketFilter = asJSON(filter), filter
	}
	if profiles := s.profilesFor(p.node); asJSON(profiles) != p.profiles {
		p.profiles, m.UserProfiles = asJSON(profiles), profiles
	}
	peers := map[tailcfg.NodeID]*tailcfg.Node{}
	for id, peer := range s.nodes {
		if peer != p.node && !peer.data.DiscoKey.IsZero() {
			peers[id] = s.seenByOthers(peer)
		}
	}
	s.mu.Unlock()
	p.compare(peers, m)
	p.sent = peers
	if !p.started {
		p.started = true
		p.greet(m)
		return m, false
	}
	if m.Node == nil && m.PacketFilter == nil && m.UserProfiles == nil && m.PeersChanged == nil && m.PeersRemoved == nil && m.PeersChangedPatch == nil {
		return nil, false
	}
	return m, false
}

// compare puts the differences between what was sent and what is now into the answer.
func (p *poll) compare(peers map[tailcfg.NodeID]*tailcfg.Node, m *tailcfg.MapResponse) {
	for _, id := range sortedKeys(peers) {
		now, before := peers[id], p.sent[id]
		if before == nil {
			m.PeersChanged = append(m.PeersChanged, now)
			continue
		}
		if asJSON(now) == asJSON(before) {
			continue
		}
		patched := before.Clone()
		patched.Online, patched.LastSeen = now.Online, now.LastSeen
		if asJSON(patched) == asJSON(now) {
			m.PeersChangedPatch = append(m.PeersChangedPatch, &tailcfg.PeerChange{NodeID: id, Online: now.Online, LastSeen: now.LastSeen})
		} else {
			m.PeersChanged = append(m.PeersChanged, now)
		}
	}
	for _, id := range sortedKeys(p.sent) {
		if peers[id] == nil {
			m.PeersRemoved = append(m.PeersRemoved, id)
		}
	}
}

// greet adds what only the first answer carries.
func (p *poll) greet(m *tailcfg.MapResponse) {
	now := time.Now().UTC()
	m.Peers, m.PeersChanged = m.PeersChanged, nil
	m.DERPMap, m.Domain, m.CollectServices, m.ControlTime = p.server.relay, "sandbox.example.net", opt.False, &now
	if p.server.domain != "" {
		m.DNSConfig = &tailcfg.DNSConfig{Proxied: true, Domains: []string{p.server.domain}}
	}
}

func (p *poll) send(m *tailcfg.MapResponse) bool {
	body, _ := json.Marshal(m)
	if p.compress {
		body = zstdframe.AppendEncode(nil, body, zstdframe.FastestCompression)
	}
	if _, err := p.w.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
		return false
	}
	p.w.(http.Flusher).Flush()
	return true
}

func asJSON(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}
