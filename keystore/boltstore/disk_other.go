//go:build !linux

package boltstore

// fileSystemOf tells nothing here.
func fileSystemOf(string) (free int64, kind string) { return -1, "" }
