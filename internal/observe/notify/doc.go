// Package notify reports readiness and liveness to the service manager: sd_notify(3) of systemd, which the
// unit deploy/systemd/nkp.service asks for by Type=notify and WatchdogSec=. Where there is no service manager
// of that kind it does nothing.
//
// The agent decides when it is alive and passes signs of life. Start reading at [Run]. The Service Control
// Manager of Windows is package windows/service.
package notify
