package report

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
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
	// Linear makes the costs' axis linear, around the values; otherwise both are logarithmic, so that the slope is the exponent.
	Linear bool
	// Line is a horizontal line at this cost, if it is not 0.
	Line   float64
	Curves []Curve
}

// colours can be distinguished without seeing red or green (Okabe and Ito's palette).
var colours = []color.RGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}}

// typeface has the widths of Arial and Helvetica, so that a viewer without it sets labels in the same room.
const typeface = "Liberation Sans"

func init() { plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"} }

// WriteSVG writes the figure to a file.
func (f Figure) WriteSVG(file string) error {
	p, err := f.plot()
	if err != nil {
		return err
	}
	w, err := p.WriterTo(15*vg.Centimeter, 9*vg.Centimeter, "svg")
	if err != nil {
		return err
	}
	var b strings.Builder
	if _, err := w.WriteTo(&b); err != nil {
		return err
	}
	svg := strings.ReplaceAll(b.String(), "font-family:"+typeface, "font-family:'"+typeface+"',Arial,Helvetica,sans-serif")
	return os.WriteFile(file, []byte(svg), 0o644)
}

func (f Figure) plot() (*plot.Plot, error) {
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
			return nil, fmt.Errorf("plot %s: %w", f.Title, err)
		}
		line.Color, line.Width = colours[i%len(colours)], vg.Points(1.5)
		points.Color, points.Shape, points.Radius = colours[i%len(colours)], draw.CircleGlyph{}, vg.Points(3)
		p.Add(line, points)
		p.Legend.Add(c.Name, line, points)
	}
	if f.Line != 0 {
		level, err := plotter.NewLine(plotter.XYs{{X: left, Y: f.Line}, {X: right, Y: f.Line}})
		if err != nil {
			return nil, err
		}
		level.Color, level.Dashes = color.Gray{128}, []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(level)
		top, bottom = max(top, f.Line), min(bottom, f.Line)
	}
	p.X.Min, p.X.Max = left*0.8, right*1.6 // room for the last label
	if f.Linear {
		span := max(top-bottom, 0.1)
		p.Y.Min, p.Y.Max = bottom-0.2*span, top+0.7*span // room for the legend
	} else {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(bottom))), math.Pow(10, math.Ceil(math.Log10(top)+0.6))
	}
	return p, nil
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
