package main

import (
	"encoding/json"
	"net/http"
)

// apiHandler is the administrators' side, in the shape of Tailscale's /api/v2.
func (s *server) apiHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v2/oauth/token", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"access_token": s.apiKey, "token_type": "Bearer", "expires_in": 3600, "scope": "auth_keys devices:core"})
	})
	s.routeKeys(mux)
	s.routeDevices(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		if r.URL.Path != "/api/v2/oauth/token" && user != s.apiKey && r.Header.Get("Authorization") != "Bearer "+s.apiKey {
			refuse(w, http.StatusUnauthorized, "API token invalid")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"message": message})
}
