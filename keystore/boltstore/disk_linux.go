package boltstore

import "syscall"

// fileSystems are the kinds that matter, by the magic numbers of statfs(2).
var fileSystems = map[uint32]string{
	0x01021994: "tmpfs",
	0x858458f6: "ramfs",
	0x794c7630: "overlayfs",
	0x6969:     "nfs",
	0x517b:     "smb",
	0xff534d42: "smb",
	0xfe534d42: "smb",
}

// fileSystemOf returns how many bytes are free for us on the file system that a
// directory is on, and its kind.
func fileSystemOf(dir string) (free int64, kind string) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return -1, ""
	}
	return int64(s.Bavail) * int64(s.Bsize), fileSystems[uint32(s.Type)] //nolint:unconvert // their types differ between platforms
}
