package report

import "math"

// Point is a cost at a number of Services.
type Point struct{ Services, Cost float64 }

// Exponent fits cost = a × Services^k by least squares on logarithms and returns k: 0 if the cost does not depend on the
// number, 1 if it is proportional to it, 2 if it is quadratic. ok is false with less than two points.
func Exponent(points []Point) (k float64, ok bool) {
	var n, sx, sy, sxx, sxy float64
	for _, p := range points {
		if p.Services <= 0 || p.Cost <= 0 {
			continue
		}
		x, y := math.Log(p.Services), math.Log(p.Cost)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	d := n*sxx - sx*sx
	if n < 2 || d == 0 {
		return 0, false
	}
	return (n*sxy - sx*sy) / d, true
}
