package service

import (
	"context"
	"runtime"
	"strings"
	"testing"
)

// Outside the Service Control Manager everything fails with an error that says what to do, on every system.
func TestOutsideTheSCM(t *testing.T) {
	if IsService() {
		t.Error("this test is not a service")
	}
	err := Run("", func(context.Context) error { t.Error("the program ran"); return nil })
	want := "Service Control Manager"
	if runtime.GOOS != "windows" {
		want = "Windows only"
		if _, err := EventLog("", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("EventLog: %v", err)
		}
		for name, err := range map[string]error{"Install": Install(Config{}), "Uninstall": Uninstall("")} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Run: %v", err)
	}
}
