package keystore

// The rules of names and records.
var mutationsOfRecords = []mutation{
	{"record: of another name is refused", "record.go", "case j.Name != name:", "case false:", "TestRecordOfAnotherNameIsRefused"},
	{"record: with another job's id is refused", "record.go", "case idName != name:", "case idName != name && false:", "TestRecordOfAnotherNameIsRefused"},
	{"record: of a future format is refused", "record.go", "|| record[0] > FormatVersion {", "{", "TestFutureFormatIsRefused"},
	{
		"record: an unknown field is refused", "record.go",
		`		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
`,
		"",
		"TestCL14GarbageIsCorrupt",
	},
	{
		"record: foreign bytes are kept", "record.go",
		`		UTF8: cbor.UTF8DecodeInvalid,
`,
		"",
		"TestCodecReadsWhatTheLibraryReads",
	},
	{"record: a write id has one spelling", "record.go", "if !bytes.Equal(hex.AppendEncode(room[:0], id[:]), digits) {", "if bytes.Equal(hex.AppendEncode(room[:0], id[:]), nil) {", "TestCL14GarbageIsCorrupt"},
	{"record: any number of header lines is read", "record.go", "		MaxArrayElements: math.MaxInt32,\n", "", "TestRecordKeepsManyHeaderLines"},
	{"record: half a slot is refused", "record.go", "case j.CompletedBy.IsZero() != (j.Result == nil):", "case false:", "TestImpossibleRecordsAreRefused"},
	{"record: an expiry that does not fit is refused", "record.go", "case j.Unresolved() != j.Expires.IsZero():", "case false:", "TestImpossibleRecordsAreRefused"},
	{"record: a winner that is not listed is refused", "record.go", "if !completed && !j.CompletedBy.IsZero() {", "if !completed && false {", "TestImpossibleRecordsAreRefused"},
	{"record: two winners are refused", "record.go", "won != (a.State == AttemptSucceeded) {", "won && a.State != AttemptSucceeded {", "TestImpossibleRecordsAreRefused"},
	{
		"record: garbage is corrupt, not absent", "record.go",
		`return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	j.WriteID = id`,
		`return nil, nil
	}
	j.WriteID = id`,
		"TestCL14GarbageIsCorrupt",
	},
	{
		"name: parts are length-prefixed", "digest.go",
		`		data = binary.BigEndian.AppendUint64(data, uint64(len(part)))
		data = append(data, part...)
	}
	return d.Sum(data)`,
		`		_ = binary.BigEndian
		data = append(data, part...)
	}
	return d.Sum(data)`,
		"TestNameKeepsIdentitiesApart",
	},
	{"name: an owner's digest is no name", "digest.go", `return d.digest("owner", owner)`, `return d.digest("job", "", "", owner)`, "TestOwnerDigestIsNoName"},
	{"job id: it is whole", "keystore.go", "|| len(suffix) != suffixDigits {", "|| len(suffix) > suffixDigits {", "TestJobIDNamesItsRecord"},
	{"record: an instant before its job is one", "pack.go", "	return t - created\n", "	return -t\n", "TestRecordKeepsInstants"},
	{"record: a far instant is told in full", "pack.go", "case t.IsZero(), t-created >= farthest:", "case t.IsZero():", "TestRecordKeepsInstants"},
	{"codec: what is odd is left to the library", "codec.go", "if c.odd || c.at != len(b) {", "if c.at != len(b) {", "TestCodecLeavesWhatIsOdd"},
	{"codec: nothing follows a job", "codec.go", "if c.odd || c.at != len(b) {", "if c.odd {", "TestCodecLeavesWhatIsOdd"},
	{"codec: no field is unread", "cbor.go", "c.odd = c.odd || c.left != 0", "", "TestCodecLeavesWhatIsOdd"},
	{"codec: no number out of range", "cbor.go", "uint64(*v) == n ||", "true ||", "TestCodecLeavesWhatIsOdd"},
	{"codec: no number of the wrong sign", "cbor.go", "major == cborUint && *v >= 0 &&", "major == cborUint &&", "TestCodecLeavesWhatIsOdd"},
	{"codec: no digest of another length", "cbor.go", "c.odd = c.odd || n != len(v); !c.odd", "!c.odd", "TestCodecLeavesWhatIsOdd"},
	{"codec: no header twice", "cbor.go", "c.odd = c.odd || len(*h) != n // a name twice", "", "TestCodecLeavesWhatIsOdd"},
	{"codec: a body that was read is a copy", "cbor.go", "append([]byte{}, c.readBytes(n)...)", "c.readBytes(n)", "TestReadJobIsIndependent"},
	{"digest: a secret counts", "digest.go", "h := hmac.New(sha256.New, d.secret[:])", "h := hmac.New(sha256.New, nil)", "TestSecretChangesDigests"},
	{"secret: it has 32 bytes", "secret.go", "err == nil && len(b) == len(s)", "err == nil && len(b) >= len(s)", "TestParseSecret"},
	{"seal: it is bound to the job", "seal.go", `for _, part := range []string{purpose, jk.id, jk.job} {`, `for _, part := range []string{purpose, jk.id} {`, "TestSealIsBoundTwice"},
	{"seal: each job has its own key", "seal.go", `"caddy-idempotency record 1 "+jobID`, `"caddy-idempotency record 1 "`, "TestSealIsBoundTwice"},
	{"seal: each part is bound to its place", "seal.go", `for _, part := range []string{purpose, jk.id, jk.job} {`, `for _, part := range []string{jk.id, jk.job} {`, "TestSealIsBound"},
	{"seal: the first key writes", "seal.go", "	first := k.keys[0]\n	jk := first.of(jobID)", "	first := k.keys[len(k.keys)-1]\n	jk := first.of(jobID)", "TestKeyringRotates"},
	{"seal: what is not encrypted is bound", "seal.go", "if opened.Status != r.Status || opened.Size", "if opened.Size", "TestSealedResponseKeepsItsStatus"},
	{"seal: no plain digest of an answer", "seal.go", "Sum: jk.sum(DigestOf(r.Body)),", "Sum: DigestOf(r.Body),", "TestSealedRecordShowsNothing"},
	{"seal: sealed answers are compared", "report.go", "return resp.SealedBy != other.SealedBy || resp.Sum == other.Sum", "return bytes.Equal(resp.Body, other.Body)", "TestSealedAnswersAreCompared"},
}
