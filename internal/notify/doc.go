// Package notify tells the service manager how nkp is: sd_notify(3) of systemd, which the unit deploy/systemd/nkp.service
// asks for by Type=notify and WatchdogSec=. Where there is no service manager of that kind it does nothing.
//
// It knows nothing of what a sign of life is made of; the agent gives them. Start reading at [Run]. The Service Control
// Manager of Windows is package windows/service.
package notify
