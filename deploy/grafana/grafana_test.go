package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// nkp.json is what this program writes.
func TestCurrent(t *testing.T) {
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile("nkp.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Error("nkp.json is not current: go run -C deploy/grafana . > deploy/grafana/nkp.json")
	}
}

// Panels have a title of their own, an id of their own, a query, and lie on the grid without overlap.
func TestPanels(t *testing.T) {
	text, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr, RefID string }
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	taken, titles, ids := map[[2]int]string{}, map[string]bool{}, map[int]bool{}
	for _, p := range d.Panels {
		if titles[p.Title] || ids[p.ID] {
			t.Errorf("panel %q (id %d) is there twice", p.Title, p.ID)
		}
		titles[p.Title], ids[p.ID] = true, true
		if p.Type != "row" && (len(p.Targets) == 0 || p.Targets[0].Expr == "") {
			t.Errorf("panel %q has no query", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
