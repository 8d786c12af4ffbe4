package caddymodule

import (
	"log/slog"
	"strings"
)

// logProtected says which requests are protected, so that a route that was
// forgotten, or one that lets requests without a key pass, can be seen without
// trying. Which requests come here at all, the configuration around decides.
func (h *Handler) logProtected() {
	methods := "all but GET, HEAD, OPTIONS, TRACE and CONNECT"
	if len(h.config.Methods) > 0 {
		methods = strings.Join(h.config.Methods, ", ")
	}
	without := "pass unprotected"
	if h.config.KeyRequired {
		without = "are refused"
	}
	h.log.Info("requests are protected", slog.String("methods", methods), slog.String("key_header", h.config.KeyHeader),
		slog.String("without_key", without), slog.String("space", h.config.Space),
		slog.String("store", h.opener.CaddyModule().ID.Name()), slog.Bool("replay_check", len(h.ReplayCheck) > 0),
		slog.Int("providers", len(h.Providers)))
}
