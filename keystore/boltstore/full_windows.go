package boltstore

import "syscall"

// noRoom are the errors by which the system says that there is no room for a write.
// What package syscall calls ENOSPC there, no system call returns.
var noRoom = []error{
	syscall.Errno(39),   // ERROR_HANDLE_DISK_FULL
	syscall.Errno(112),  // ERROR_DISK_FULL
	syscall.Errno(1295), // ERROR_DISK_QUOTA_EXCEEDED
}
