package main

import (
	"encoding/json"
	"net/http"
	"slices"

	"tailscale.com/tailcfg"
)

// visibleGroups is the node attribute whose nodes are told the groups of users.
const visibleGroups = "tailscale.com/visible-groups"

// policy is what this server knows of a tailnet policy file, in its own shape: groups, capabilities of applications, and who
// is told of groups. All packets pass, whatever it says.
type policy struct {
	Groups map[string][]string
	Grants []struct {
		Src, Dst []string
		App      map[tailcfg.PeerCapability][]tailcfg.RawMessage
	}
	NodeAttrs []struct {
		Target []string
		App    map[string][]struct{ Groups []string }
	}
}

// setPolicy takes a policy file, as JSON without comments, and tells all nodes what has changed for them.
func (s *server) setPolicy(w http.ResponseWriter, r *http.Request) {
	var p policy
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = p
	s.changed()
	answer(w, p)
}

// selects says whether one of the policy's selectors names a node: all, a tag, a user, a group of users. mu is held.
func (s *server) selects(selectors []string, n *node) bool {
	login := s.logins[n.data.User]
	return slices.ContainsFunc(selectors, func(one string) bool {
		if one == "*" || slices.Contains(n.data.Tags, one) {
			return true
		}
		return len(n.data.Tags) == 0 && (one == login || slices.Contains(s.policy.Groups[one], login))
	})
}

// filterFor is the packet filter of a node: all may reach it, and some have capabilities there. mu is held.
func (s *server) filterFor(to *node) []tailcfg.FilterRule {
	rules := slices.Clone(tailcfg.FilterAllowAll)
	for _, grant := range s.policy.Grants {
		if len(grant.App) == 0 || !s.selects(grant.Dst, to) {
			continue
		}
		rule := tailcfg.FilterRule{CapGrant: []tailcfg.CapGrant{{Dsts: to.data.Addresses, CapMap: grant.App}}}
		for _, id := range sortedKeys(s.nodes) {
			if from := s.nodes[id]; s.selects(grant.Src, from) {
				for _, address := range from.data.Addresses {
					rule.SrcIPs = append(rule.SrcIPs, address.Addr().String())
				}
			}
		}
		if len(rule.SrcIPs) > 0 {
			rules = append(rules, rule)
		}
	}
	return rules
}

// profilesFor is what a node is told of all users. mu is held.
func (s *server) profilesFor(to *node) []tailcfg.UserProfile {
	var visible []string
	for _, attr := range s.policy.NodeAttrs {
		if s.selects(attr.Target, to) {
			for _, value := range attr.App[visibleGroups] {
				visible = append(visible, value.Groups...)
			}
		}
	}
	var profiles []tailcfg.UserProfile
	for _, id := range sortedKeys(s.logins) {
		profile := tailcfg.UserProfile{ID: id, LoginName: s.logins[id], DisplayName: s.logins[id]}
		for _, group := range sortedKeys(s.policy.Groups) {
			told := slices.Contains(visible, "*") || slices.Contains(visible, group)
			if told && slices.Contains(s.policy.Groups[group], profile.LoginName) {
				profile.Groups = append(profile.Groups, group)
			}
		}
		profiles = append(profiles, profile)
	}
	return profiles
}

// userOf is the id of a user, who is made if there is none of that login. mu is held.
func (s *server) userOf(login string) tailcfg.UserID {
	for id, one := range s.logins {
		if one == login {
			return id
		}
	}
	id := tailcfg.UserID(len(s.logins) + 1)
	s.logins[id] = login
	return id
}
