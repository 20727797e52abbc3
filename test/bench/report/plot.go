package report

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Curve is one line of a plot.
type Curve struct {
	Name   string
	Points []Point
}

// Figure is a plot of costs against the number of Services.
type Figure struct {
	Title, Unit string
	// Linear makes the costs' axis linear and begin at 0; otherwise both are logarithmic, so that the slope is the exponent.
	Linear bool
	// Line is a horizontal line at this cost, if it is not 0.
	Line   float64
	Curves []Curve
}

// colours are told apart also by who sees no red or no green (Okabe and Ito's palette).
var colours = []color.RGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}}

// WriteSVG writes the figure to a file.
func (f Figure) WriteSVG(file string) error {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = f.Title, "Services", f.Unit
	p.Title.Padding = vg.Points(8)
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(2)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	top, bottom, left, right := 0.0, math.Inf(1), math.Inf(1), 0.0
	p.Add(plotter.NewGrid())
	for i, c := range f.Curves {
		var xy plotter.XYs
		for _, pt := range c.Points {
			if pt.Cost <= 0 && !f.Linear {
				continue
			}
			xy = append(xy, plotter.XY{X: pt.Services, Y: pt.Cost})
			top, bottom = max(top, pt.Cost), min(bottom, pt.Cost)
			left, right = min(left, pt.Services), max(right, pt.Services)
		}
		if len(xy) == 0 {
			continue
		}
		line, points, err := plotter.NewLinePoints(xy)
		if err != nil {
			return fmt.Errorf("plot %s: %w", f.Title, err)
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.5)
		points.Color, points.Shape, points.Radius = colours[i%len(colours)], draw.CircleGlyph{}, vg.Points(3)
		p.Add(line, points)
		p.Legend.Add(c.Name, line, points)
	}
	if f.Line != 0 {
		level, err := plotter.NewLine(plotter.XYs{{X: left, Y: f.Line}, {X: right, Y: f.Line}})
		if err != nil {
			return err
		}
		level.Color, level.Dashes = color.Gray{128}, []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(level)
		top, bottom = max(top, f.Line), min(bottom, f.Line)
	}
	p.X.Min, p.X.Max = left*0.8, right*1.25
	if f.Linear {
		p.Y.Min, p.Y.Max = 0, top*1.4
	} else {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(bottom))), math.Pow(10, math.Ceil(math.Log10(top)+0.6))
	}
	return p.Save(15*vg.Centimeter, 9*vg.Centimeter, file)
}

// decades marks the powers of ten of a logarithmic axis by name, and what is between them by strokes.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(least, most float64) (ticks []plot.Tick) {
	for e := math.Floor(math.Log10(least)); e <= math.Ceil(math.Log10(most)); e++ {
		for k := 1.0; k < 10; k++ {
			v := k * math.Pow(10, e)
			if v < least*0.999 || v > most*1.001 {
				continue
			}
			t := plot.Tick{Value: v}
			if k == 1 {
				t.Label = strconv.FormatFloat(v, 'f', -1, 64)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}
