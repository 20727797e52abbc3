package k8s

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nkp-proxy/nkp/test/nightly"
)

// Shares are the weights divided by what they have in common, and beyond a bound of slots those of all endpoints of one weight together
// are their part to within a slot, however the weights are mixed.
func TestShares(t *testing.T) {
	for _, tc := range []struct{ weights, want []int }{
		{nil, []int{}},
		{[]int{100}, []int{1}},
		{[]int{5, 5, 5}, []int{1, 1, 1}},
		{[]int{70, 30}, []int{7, 3}},
		{[]int{1, 100}, []int{1, 100}},
	} {
		if got := Shares(tc.weights, 1024); !slices.Equal(got, tc.want) {
			t.Errorf("weights %v: shares %v, want %v", tc.weights, got, tc.want)
		}
	}

	random := rand.New(rand.NewPCG(nightly.Seed(t), 5))
	for range nightly.Count(200, 5000) {
		kinds := []int{1 + random.IntN(MaxWeight), 1 + random.IntN(MaxWeight), 1 + random.IntN(MaxWeight)}
		weights := make([]int, 1+random.IntN(3000))
		total, divisor := 0, 0
		for i := range weights {
			weights[i] = kinds[random.IntN(len(kinds))]
			total += weights[i]
			divisor = gcd(divisor, weights[i])
		}
		most := max(1024, 2*len(weights))
		shares, slots := Shares(weights, most), 0
		of, n := map[int]int{}, map[int]int{}
		for i, w := range weights {
			if shares[i] < 1 {
				t.Fatalf("weights %v: an endpoint without a slot", weights)
			}
			slots += shares[i]
			of[w] += shares[i]
			n[w]++
		}
		if slots > most+len(weights) {
			t.Errorf("%d endpoints have %d slots, want %d and one each at most", len(weights), slots, most)
		}
		for w, got := range of {
			if total/divisor <= most { // exactly
				if got*total != w*n[w]*slots {
					t.Errorf("%d of %d endpoints have weight %d, and %d of %d slots", n[w], len(weights), w, got, slots)
				}
				continue
			}
			want := float64(w*n[w]) * float64(most) / float64(total)
			if math.Abs(float64(got)-want) > 1 && got != n[w] {
				t.Errorf("%d of %d endpoints have weight %d, and %d slots, want %.1f", n[w], len(weights), w, got, want)
			}
		}
	}
}

// A data plane that cannot divide connections warns where weights would, and not about draining.
func TestNotWeighing(t *testing.T) {
	for text, want := range map[string]string{"10.0.0.1=7": "has no effect, but for weight 0: it cannot", "10.0.0.1=0": ""} {
		s := webService()
		s.Spec.SessionAffinity = v1.ServiceAffinityNone
		s.Annotations = map[string]string{AnnotationWeights: text}
		tracker := NewTracker(Options{NodeName: "n1", NotWeighing: "it cannot"})
		tracker.SetService(s, Origin{})
		m, _ := tracker.Flush()
		if warned := fmt.Sprint(m.Warnings); want == "" && len(m.Warnings) > 0 || !strings.Contains(warned, want) {
			t.Errorf("%s: %s, want %q", text, warned, want)
		}
	}
}
