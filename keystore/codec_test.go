package keystore

import (
	"bytes"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"pgregory.net/rapid"
)

// byLibrary is what the codec is measured against: the library, and jobs packed in a
// simpler way than the codec does it.
var byLibrary = must(cbor.EncOptions{Sort: cbor.SortBytewiseLexical}.EncMode())

// packed returns the job as its record has it.
func packed(j *Job) *Job {
	short := strings.NewReplacer("\x00", "\x00\x00", phrases[0], "\x00a", phrases[1], "\x00b", phrases[2], "\x00c")
	p := *j
	p.ID = strings.TrimPrefix(j.ID, j.Name.String()+".")
	instant := func(t *Time) { *t = t.packed(j.Created) }
	answer := func(resp **Response) {
		if *resp != nil {
			c := **resp
			instant(&c.Answered)
			*resp = &c
		}
	}
	instant(&p.Expires)
	answer(&p.Result)
	p.Attempts = slices.Clone(j.Attempts)
	for i := range p.Attempts {
		a := &p.Attempts[i]
		a.Reason = short.Replace(a.Reason)
		for _, t := range []*Time{&a.Started, &a.Lease, &a.ListensUntil, &a.Ended, &a.Lookups.Last} {
			instant(t)
		}
		if a.Resolution != nil {
			c := *a.Resolution
			instant(&c.At)
			a.Resolution = &c
		}
		answer(&a.Kept)
	}
	return &p
}

// anyOf draws a value of a type: whatever fields there are, none is forgotten. There
// are headers with more than one line only where their order does not matter.
func anyOf(t *rapid.T, v reflect.Value, headers int) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.OneOf(rapid.Int64(), rapid.Int64Range(-300, 300), rapid.SampledFrom([]int64{0, math.MinInt64, math.MaxInt64, 1 << 40, 1_700_000_000_000})).Draw(t, "int"))
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(rapid.OneOf(rapid.Uint64Range(0, 255), rapid.SampledFrom([]uint64{0, 23, 24, 255, math.MaxUint64})).Draw(t, "uint") & (1<<v.Type().Bits() - 1))
	case reflect.String:
		v.SetString(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
			"", "\xff\xfe", "\x00", "\x00a", "\x00\x00z", strings.Repeat("é", 200), phrases[0] + "502" + phrases[1] + "502" + phrases[2],
		})).Draw(t, "text"))
	case reflect.Array:
		if rapid.Bool().Draw(t, "set") {
			reflect.Copy(v, reflect.ValueOf(rapid.SliceOfN(rapid.Byte(), v.Len(), v.Len()).Draw(t, "array")))
		}
	case reflect.Slice:
		n := rapid.IntRange(-1, 3).Draw(t, "length")
		if n < 0 {
			return
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(bytes.Repeat([]byte{0xff}, rapid.SampledFrom([]int{0, 1, 23, 24, 255, 256, 65_535, 65_536}).Draw(t, "size")))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			anyOf(t, v.Index(i), headers)
		}
	case reflect.Map:
		n := rapid.IntRange(-1, headers).Draw(t, "headers")
		if n < 0 {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for range n {
			name, values := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			anyOf(t, name, headers)
			anyOf(t, values, headers)
			v.SetMapIndex(name, values)
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "there") {
			v.Set(reflect.New(v.Type().Elem()))
			anyOf(t, v.Elem(), headers)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("cbor") != "-" {
				anyOf(t, v.Field(i), headers)
			}
		}
	default:
		t.Fatalf("the codec knows no %s", v.Type())
	}
}

func anyJob(t *rapid.T, headers int) *Job {
	j := new(Job)
	anyOf(t, reflect.ValueOf(j).Elem(), headers)
	if rapid.Bool().Draw(t, "its own id") {
		j.ID = j.Name.String() + "." + rapid.SampledFrom([]string{"", "00c0ffee", "00c0ffee0"}).Draw(t, "suffix")
	}
	return j
}

// The codec writes what the library would write, byte for byte, apart from the order of
// headers, which is any with both.
func TestCodecWritesWhatTheLibraryWrites(t *testing.T) {
	t.Parallel()
	check := func(t rapid.TB, j *Job) {
		want := must(byLibrary.Marshal(packed(j)))
		got := appendJob([]byte("before"), j)
		if !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Fatalf("%+v\ngot  %x\nwant %x", j, got[len("before"):], want)
		}
	}
	rapid.Check(t, func(t *rapid.T) { check(t, anyJob(t, 1)) })
	j := fullJob()
	maps.DeleteFunc(j.Result.Header, func(name string, _ []string) bool { return name != "Content-Type" })
	check(t, j)
}

// What the codec reads, the library reads so too; and it leaves to the library nothing
// that the codec has written, apart from what is null.
func TestCodecReadsWhatTheLibraryReads(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		written := appendJob(nil, anyJob(t, 4))
		if got := mustReadAlike(t, written); got == nil && !bytes.Contains(written, []byte{cborNull}) {
			t.Fatalf("not read: %x", written)
		}
		for range 10 { // and with a byte changed, put in or left out, or cut
			b := bytes.Clone(written)
			at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
			with := rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte{0x00, 0x18, 0x19, 0x1b, 0x20, 0x3b, 0x40, 0x60, 0x78, 0x80, 0xa0, 0xbf, 0xc0, 0xf4, 0xf6, 0xff})).Draw(t, "byte")
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				b[at] = with
			case 1:
				b = slices.Insert(b, at, with)
			case 2:
				b = slices.Delete(b, at, at+1)
			case 3:
				b = b[:at]
			}
			mustReadAlike(t, b)
		}
	})
	for name, j := range situations(t) {
		if b := appendJob(nil, j); mustReadAlike(t, b) == nil {
			t.Errorf("%s: left to the library: %x", name, b)
		}
	}
}

// mustReadAlike returns the job that the codec reads; nil if it leaves that to the
// library.
func mustReadAlike(t rapid.TB, b []byte) *Job {
	got, want := readJob(b), new(Job)
	if got == nil {
		return nil
	}
	if err := recordDecoder.Unmarshal(b, want); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%x\ngot  %+v\nwant %+v, %v", b, got, want, err)
	}
	return got
}

// What a codec does not write is left to the library, which accepts some of it.
func TestCodecLeavesWhatIsOdd(t *testing.T) {
	t.Parallel()
	max8 := strings.Repeat("\xff", 8)
	for name, of := range map[string]struct {
		cbor       string
		read, good bool // by the codec; by the library
	}{
		"nothing":                     {"", false, false},
		"an empty map":                {"\xa0", true, true},
		"something after it":          {"\xa0\xa0", false, false},
		"a map that is too short":     {"\xa1", false, false},
		"a map that is cut":           {"\xa2\x0a\x01", false, false},
		"a field of the future":       {"\xa1\x18\x63\x01", false, false},
		"a field twice":               {"\xa2\x0a\x01\x0a\x02", false, false},
		"fields in another order":     {"\xa2\x0a\x01\x08\x01", false, true},
		"a key in two bytes":          {"\xa1\x18\x0a\x01", false, true},
		"a number in two bytes":       {"\xa1\x0a\x18\x01", true, true},
		"a number that is cut":        {"\xa1\x0a\x19\x01", false, false},
		"a number of no size":         {"\xa1\x0a\x1c", false, false},
		"the largest number":          {"\xa1\x0a\x1b" + max8, true, true},
		"too large a number":          {"\xa1\x0c\x1b" + max8, false, false},
		"the least number":            {"\xa1\x0c\x3b\x7f" + max8[1:], true, true},
		"too small a number":          {"\xa1\x0c\x3b" + max8, false, false},
		"a number below none":         {"\xa1\x0a\x20", false, false},
		"the largest recipe":          {"\xa1\x06\xa1\x01\x18\xff", true, true},
		"too large a recipe":          {"\xa1\x06\xa1\x01\x19\x01\x01", false, false},
		"a recipe below none":         {"\xa1\x06\xa1\x01\x20", false, false},
		"a fraction":                  {"\xa1\x0a\xf9\x3c\x00", false, false},
		"a text for a number":         {"\xa1\x0a\x61a", false, false},
		"bytes for a text":            {"\xa1\x03\x41a", false, false},
		"a text that is cut":          {"\xa1\x03\x62a", false, false},
		"a text in pieces":            {"\xa1\x03\x7f\x61a\xff", false, false},
		"no text":                     {"\xa1\x03\xf6", false, true},
		"a short digest":              {"\xa1\x04\x41a", false, true},
		"an answer of nothing":        {"\xa1\x0e\xa0", true, true},
		"no answer":                   {"\xa1\x0e\xf6", false, true},
		"a flag":                      {"\xa1\x0e\xa1\x06\xf4", true, true},
		"no flag":                     {"\xa1\x0e\xa1\x06\xf7", false, true},
		"a number for a flag":         {"\xa1\x0e\xa1\x06\x01", false, false},
		"headers":                     {"\xa1\x0e\xa1\x02\xa2\x61a\x81\x61x\x61b\x80", true, true},
		"a header twice":              {"\xa1\x0e\xa1\x02\xa2\x61a\x81\x61x\x61a\x80", false, false},
		"more headers than there are": {"\xa1\x0e\xa1\x02\xbb" + max8, false, false},
		"a body":                      {"\xa1\x0e\xa1\x04\x40", true, true},
		"a list of numbers as a body": {"\xa1\x0e\xa1\x04\x81\x01", false, true},
		"attempts":                    {"\xa1\x0b\x82\xa0\xa0", true, true},
		"no list of attempts":         {"\xa1\x0b\xa0", false, false},
		"a tag that says CBOR":        {"\xd9\xd9\xf7\xa0", false, true},
	} {
		read := mustReadAlike(t, []byte(of.cbor)) != nil
		good := recordDecoder.Unmarshal([]byte(of.cbor), new(Job)) == nil
		if read != of.read || good != of.good {
			t.Errorf("%s: read by the codec %t, by the library %t; want %t, %t", name, read, good, of.read, of.good)
		}
	}
}

func FuzzCodecReadsWhatTheLibraryReads(f *testing.F) {
	for _, j := range []*Job{fullJob(), keepingJob(), running()} {
		f.Add(appendJob(nil, j))
	}
	f.Fuzz(func(t *testing.T, b []byte) { mustReadAlike(t, b) })
}

// Nothing of a record that was read is part of the record: stores use that again.
func TestReadJobIsIndependent(t *testing.T) {
	t.Parallel()
	rec := encoded(t, fullJob())
	j, err := DecodeRecord(fullJob().Name, rec)
	if err != nil {
		t.Fatal(err)
	}
	clear(rec)
	if !reflect.DeepEqual(j, fullJob()) {
		t.Errorf("got %+v", j)
	}
}

// A record is written in one piece of memory, and the job in it is read into few.
func TestCodecAllocations(t *testing.T) {
	for name, j := range map[string]*Job{"claim": claimedJob(), "commit": answeredJob()} {
		rec := encoded(t, j)
		writes := testing.AllocsPerRun(100, func() { _, _ = EncodeRecord(j) })
		reads := testing.AllocsPerRun(100, func() { _, _ = DecodeRecord(j.Name, rec) })
		if writes > 1 || reads > 12 {
			t.Errorf("%s: %.0f allocations to write it, %.0f to read it", name, writes, reads)
		}
	}
}
