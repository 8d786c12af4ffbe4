package boltstore

import "io"

// secure has what is seen in the file on the disk before anything is written over
// what it has replaced.
//
// A commit that was cut short can be seen without being on the disk. The pages that it
// has set free are still needed then, should the power fail. To sync the file is not
// enough: what could not be written once is taken for written. The pages of data that
// such a commit has written were on the disk before its last page, the one that makes
// it the last commit, so that this one is all that is to be written again.
func (f *file) secure(secure func(metaPages, int64, int) error) error {
	tx, err := f.begin(false)
	if err != nil {
		return err
	}
	size := f.db.Info().PageSize
	at := int64(tx.ID()%2) * int64(size)
	if err := tx.Rollback(); err != nil {
		return err
	}
	return secure(f.handle, at, size)
}

// metaPages is what is needed of a file for that.
type metaPages interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

func rewrite(f metaPages, at int64, size int) error {
	page := make([]byte, size)
	if _, err := f.ReadAt(page, at); err != nil {
		return err
	}
	if _, err := f.WriteAt(page, at); err != nil {
		return err
	}
	return f.Sync()
}
