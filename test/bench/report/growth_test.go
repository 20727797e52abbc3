package report

import (
	"math"
	"testing"
)

func TestExponent(t *testing.T) {
	for _, want := range []float64{0, 0.1, 1, 2} {
		var points []Point
		for _, n := range []float64{100, 1000, 5000, 10_000} {
			points = append(points, Point{n, 3 * math.Pow(n, want)})
		}
		if got, ok := Exponent(points); !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("exponent %g, %t; want %g", got, ok, want)
		}
	}
	for _, points := range [][]Point{nil, {{100, 1}}, {{100, 1}, {100, 2}}, {{100, 0}, {1000, 5}}} {
		if got, ok := Exponent(points); ok {
			t.Errorf("%v have the exponent %g; want none", points, got)
		}
	}
}
