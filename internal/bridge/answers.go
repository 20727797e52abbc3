package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nkp-proxy/nkp/internal/dataplane"
	"github.com/nkp-proxy/nkp/ofctrl"
)

// How long a command waits for any message from ovs-vswitchd. Commands that can do without the switch wait
// for less time.
const (
	answerWait   = 700 * time.Millisecond
	countersWait = 400 * time.Millisecond
	// statusWait also bounds the wait for the loop, which may itself wait for the switch.
	statusWait = 300 * time.Millisecond
	// freshness is the age up to which the switch's last message counts as an answer: Status trusts a switch
	// that is only slow.
	freshness = time.Second
)

// Answers returns nil if ovs-vswitchd sends anything within answerWait; a full answer may take longer.
// Otherwise the error has the time of its last message, and whether its database answers. Answers does not
// wait for the loop. Any goroutine may call it.
func (p *Plane) Answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	conn := p.conn()
	switch {
	case conn == nil:
		return p.notConnected()
	case conn.Answers(ctx):
		return nil
	}
	return fmt.Errorf("ovs-vswitchd has not answered since %s%s",
		conn.Heard().UTC().Format(time.RFC3339), p.databaseText())
}

// conn returns the connection in use; nil if there is none. Any goroutine may call it.
func (p *Plane) conn() *ofctrl.Conn {
	if client := p.of.Load(); client != nil {
		return client.Conn()
	}
	return nil
}

// notConnected reports why there is no OpenFlow connection, and since when. Any goroutine may call it.
func (p *Plane) notConnected() error {
	if sw := p.db.Switch(); !sw.Exists {
		return errors.New(Gone(&sw))
	}
	text := "the agent is not connected to the switch"
	var s ofctrl.Status
	if client := p.of.Load(); client != nil {
		s = client.Status()
	}
	if !s.Heard.IsZero() {
		text += ", and ovs-vswitchd has not answered since " + s.Heard.UTC().Format(time.RFC3339)
	}
	text += p.databaseText()
	if s.LastError != nil {
		return fmt.Errorf("%s: %w", text, s.LastError)
	}
	return errors.New(text)
}

// DatabaseStatus is the connection to the database of Open vSwitch (ovsdb-server).
type DatabaseStatus struct {
	Endpoint string `json:"endpoint"`
	Answers  bool   `json:"answers"`
	// AwaySince is when it stopped answering; nil: it answers. LastError says why.
	AwaySince *time.Time `json:"awaySince,omitempty"`
	LastError string     `json:"lastError,omitempty"`
}

func (p *Plane) database() DatabaseStatus {
	s := DatabaseStatus{Endpoint: p.set.OVSDB, Answers: true}
	if since, why := p.db.Away(); !since.IsZero() {
		s.Answers, s.AwaySince, s.LastError = false, &since, errorText(why)
	}
	return s
}

// databaseText returns the end of an error message: since when the database has not answered; "": it answers.
// ovs-vswitchd may be waiting for the database.
func (p *Plane) databaseText() string {
	s := p.database()
	if s.Answers {
		return ""
	}
	return fmt.Sprintf("; its database %s has not answered since %s: look at ovsdb-server first",
		s.Endpoint, s.AwaySince.UTC().Format(time.RFC3339))
}

// withoutAnswer returns s changed for a switch that does not answer. It is not in step, because what the
// switch holds now is unknown.
func withoutAnswer(s dataplane.Status, why error) dataplane.Status {
	s.InStep, s.Why = false, why.Error()
	d := s.Detail.(*Status)
	d.InStep, d.Why, d.Channel.Silent = false, s.Why, d.Channel.Connected
	return s
}
