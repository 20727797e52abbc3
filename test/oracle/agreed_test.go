package oracle

import (
	"strings"
	"testing"
)

// nkp answers as it did when kube-proxy's own code agreed. A rule that nkp means to change makes this fail: then make differential, which
// has kube-proxy's answers, decides whether the new ones are right.
func TestAgreed(t *testing.T) {
	agreed := strings.Fields(Agreed)
	if len(agreed) != AgreedCases {
		t.Fatalf("%d cases are recorded, want %d", len(agreed), AgreedCases)
	}
	failures := 0
	for i, want := range agreed {
		seed := uint64(i + 1)
		answers, err := Generate(seed).Answers()
		switch {
		case err != nil:
			t.Errorf("seed %d: %v", seed, err)
		case answers.String() != want:
			t.Errorf("seed %d: nkp answers otherwise than when kube-proxy agreed; compare: go test -C test/k8s ./differential "+
				"-run 'TestDifferential$' -seed %d -cases 1\nnkp's answers:\n%s", seed, seed, answers.Text())
		default:
			continue
		}
		if failures++; failures == 3 {
			t.Fatal("further cases are left out")
		}
	}
}

// Answers that differ anywhere have another hash.
func TestDigest(t *testing.T) {
	at := Fact{What: Traffic, At: "ClusterIP 10.96.0.1:80"}
	seen := map[string]string{}
	for name, moments := range map[string][]Facts{
		"none": {}, "empty": {{}}, "one": {{at: "reject"}}, "other": {{at: "drop"}}, "twice": {{at: "reject"}, {at: "reject"}},
	} {
		var d Digest
		for _, m := range moments {
			d.Add(m)
		}
		if before, ok := seen[d.String()]; ok {
			t.Errorf("%s has the hash of %s", name, before)
		}
		seen[d.String()] = name
	}
}
