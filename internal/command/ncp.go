package command

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/nkp-proxy/nkp/internal/ncpini"
)

// applyNCP sets what --ncp-ini says and neither the command line nor --config does. The API server's address
// and its credentials go together: with another source of Services, none of them counts.
func (s *settings) applyNCP(f *pflag.FlagSet) error {
	if s.ncpINI == "" {
		return nil
	}
	ini, err := ncpini.Load(s.ncpINI)
	if err != nil {
		return fmt.Errorf("--ncp-ini: %w", err)
	}

	for name, text := range map[string]string{"bridge": ini.Bridge, "uplink-port": ini.Uplink} {
		if text == "" || s.cfg.isSet(name) {
			continue
		}
		if flag := f.Lookup(name); flag != nil {
			_ = flag.Value.Set(text) // every text is a name
			s.cfg.origin[name] = "--ncp-ini: " + s.ncpINI
		}
	}

	if ini.Server != "" && !s.namesSource() {
		s.master, s.cfg.origin["master"] = ini.Server, "--ncp-ini: "+s.ncpINI
		s.api.TokenFile, s.api.CAFile = ini.TokenFile, ini.CAFile
		s.api.CertFile, s.api.KeyFile = ini.CertFile, ini.KeyFile
	}

	if ini.Unused != "" {
		s.cfg.notes = append(s.cfg.notes, fmt.Sprintf("%s: nkp does not use these options of NSX's: %s",
			s.ncpINI, ini.Unused))
	}
	return nil
}
