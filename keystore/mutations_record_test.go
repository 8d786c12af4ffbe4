package keystore

// The rules of names and records.
var mutationsOfRecords = []mutation{
	{"record: of another name is refused", "record.go", "case j.Name != name:", "case false:", "TestRecordOfAnotherNameIsRefused"},
	{"record: with another job's id is refused", "record.go", "case idName != name:", "case idName != name && false:", "TestRecordOfAnotherNameIsRefused"},
	{"record: of a future format is refused", "record.go", "|| record[0] != FormatVersion {", "|| record[0] < FormatVersion {", "TestFutureFormatIsRefused"},
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
		"TestRecordKeepsForeignBytes",
	},
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
		"name: parts are length-prefixed", "keystore.go",
		`		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
`,
		`		_ = binary.BigEndian
`,
		"TestNameKeepsIdentitiesApart",
	},
	{"name: an owner's digest is no name", "keystore.go", `return digest("owner", owner)`, `return digest("job", "", "", owner)`, "TestOwnerDigestIsNoName"},
}
