package main

import (
	"encoding/json"
	"net/http"
	"time"

	"tailscale.com/util/rands"
)

func (s *server) routeKeys(mux *http.ServeMux) {
	mux.HandleFunc("POST /api/v2/tailnet/{tailnet}/keys", s.createKey)
	mux.HandleFunc("GET /api/v2/tailnet/{tailnet}/keys", s.listKeys)
	mux.HandleFunc("GET /api/v2/tailnet/{tailnet}/keys/{id}", s.oneKey(func(*authKey) {}))
	mux.HandleFunc("DELETE /api/v2/tailnet/{tailnet}/keys/{id}", s.oneKey(func(k *authKey) { k.revoked = time.Now().UTC() }))
}

func (s *server) createKey(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Capabilities struct {
			Devices struct {
				Create struct {
					Reusable, Ephemeral, Preauthorized bool
					Tags                               []string
				}
			}
		}
		ExpirySeconds int
		Description   string
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	life := time.Duration(q.ExpirySeconds) * time.Second
	if life == 0 {
		life = maxKeyLife
	}
	if life > maxKeyLife {
		refuse(w, http.StatusBadRequest, "expirySeconds is above 90 days")
		return
	}
	create := q.Capabilities.Devices.Create
	id, now := newKeyID(), time.Now().UTC()
	k := &authKey{
		id:            id,
		secret:        "tskey-auth-" + id + "-" + rands.HexString(32),
		description:   q.Description,
		created:       now,
		expires:       now.Add(life),
		reusable:      create.Reusable,
		ephemeral:     create.Ephemeral,
		preauthorized: create.Preauthorized,
		tags:          create.Tags,
		owner:         r.FormValue("owner"), // not in Tailscale's API: there it is who asks
	}
	s.mu.Lock()
	s.keys = append(s.keys, k)
	s.mu.Unlock()
	m := describeKey(k)
	m["key"] = k.secret // this once, and never again
	answer(w, m)
}

func (s *server) listKeys(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []any{}
	for _, k := range s.keys {
		if k.revoked.IsZero() {
			list = append(list, describeKey(k))
		}
	}
	answer(w, map[string]any{"keys": list})
}

// oneKey finds the key that the path names, does something to it and answers with it.
func (s *server) oneKey(do func(*authKey)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, k := range s.keys {
			if k.id == r.PathValue("id") {
				do(k)
				answer(w, describeKey(k))
				return
			}
		}
		refuse(w, http.StatusNotFound, "not found")
	}
}

func describeKey(k *authKey) map[string]any {
	create := map[string]any{"reusable": k.reusable, "ephemeral": k.ephemeral, "preauthorized": k.preauthorized, "tags": k.tags}
	m := map[string]any{
		"id":            k.id,
		"keyType":       "auth",
		"description":   k.description,
		"created":       k.created,
		"expires":       k.expires,
		"expirySeconds": int(k.expires.Sub(k.created).Seconds()),
		"tags":          k.tags,
		"capabilities":  map[string]any{"devices": map[string]any{"create": create}},
	}
	if !k.revoked.IsZero() {
		m["revoked"], m["invalid"] = k.revoked, true
	}
	if time.Now().After(k.expires) {
		m["invalid"] = true
	}
	return m
}
