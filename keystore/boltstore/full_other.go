//go:build !windows

package boltstore

import "syscall"

// noRoom are the errors by which the system says that there is no room for a write.
var noRoom = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}
