package ofctrl_test

import (
	"context"
	"errors"
	"log"

	"github.com/nkp-proxy/nkp/ofctrl"
	"github.com/nkp-proxy/nkp/pipeline"
	"github.com/nkp-proxy/nkp/pipeline/flow"
)

// A Delta is committed as one bundle: all of it is on the switch then, or nothing. What the switch refused is named.
func ExampleConn_Commit() {
	ctx := context.Background()
	target, err := ofctrl.ParseTarget("unix:/var/run/openvswitch/br-int.mgmt")
	if err != nil {
		log.Fatal(err)
	}
	conn, err := ofctrl.Dial(ctx, target, ofctrl.Options{Bridge: "br-int"})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()

	c, err := pipeline.NewCompiler(pipeline.Config{Layout: pipeline.DefaultLayout()})
	if err != nil {
		log.Fatal(err)
	}
	_, err = conn.Commit(ctx, flow.Diff(flow.NewState(), c.State()))
	if refused := (*ofctrl.TxError)(nil); errors.As(err, &refused) {
		for _, r := range refused.Rejected {
			log.Print(r)
		}
	} else if err != nil {
		log.Fatal(err)
	}
}
