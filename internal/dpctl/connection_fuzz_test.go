package dpctl

import (
	"testing"

	"github.com/nkp-proxy/nkp/k8s"
)

// FuzzConnections reads anything as the answer of dpctl/dump-conntrack. What comes out can be used.
func FuzzConnections(f *testing.F) {
	for _, s := range []string{
		"tcp,orig=(src=10.0.0.1,dst=40.0.0.1,sport=1,dport=80),reply=(src=10.0.0.2,dst=10.0.0.1,sport=8080,dport=1),zone=1001,mark=0x7,protoinfo=(state=ESTABLISHED)\n",
		"udp,orig=(src=fd00::1,dst=fd00:40::1,sport=53,dport=53),reply=(src=fd00::2,dst=fd00::1,sport=53,dport=53),zone=99999999\n",
		"icmp,orig=(src=1.1.1.1,dst=2.2.2.2,id=1,type=8,code=0),reply=()\n", "tcp,orig=(,reply=(", "sctp", "tcp,orig=(src=::ffff:1.2.3.4%x,dst=),reply=(src=,=)\n", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range parse(text) {
			if !c.Client.IsValid() || !c.Frontend.IsValid() || !c.Endpoint.IsValid() || k8s.ProtocolNumbers[c.Protocol] == 0 {
				t.Errorf("%+v", c)
			}
			_ = c.String()
		}
	})
}
