package command

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/nkp-proxy/nkp/internal/config"
	"github.com/nkp-proxy/nkp/internal/trace"
)

// flagWins reports whether a kube-proxy flag overrides the KubeProxyConfiguration: the node's name, logging
// flags, and the source of Services if the file names none. Commands other than run may name another source.
func (c *configuration) flagWins(name string) bool {
	switch name {
	case "hostname-override", "v", "logging-format":
		return true
	case "kubeconfig":
		return !c.isRun || c.file.KubeProxy.ClientConnection.Kubeconfig == ""
	}
	return false
}

// kubeProxyInForce determines kube-proxy's configuration: from the file if it has one, else from the flags.
func (s *settings) kubeProxyInForce(f *pflag.FlagSet) error {
	c := &s.cfg
	if c.replaces() {
		c.kubeProxy = c.file.KubeProxy.DeepCopy()
		return c.takeFlags(f, func(field *config.KubeProxyField) bool { return c.flagWins(field.Flag) })
	}

	c.kubeProxy = config.NewKubeProxy()
	c.kubeProxy.Mode = v1alpha1.ProxyMode(c.explicit["proxy-mode"]) // some fields apply in one mode only
	err := c.takeFlags(f, func(field *config.KubeProxyField) bool { return field.Counts(c.kubeProxy) })
	if err != nil {
		return err
	}
	k := c.kubeProxy
	if f.Lookup("healthz-port") != nil {
		k.HealthzBindAddress = config.WithPort(k.HealthzBindAddress, s.process.healthzPort)
		k.MetricsBindAddress = config.WithPort(k.MetricsBindAddress, s.process.metricsPort)
	}
	config.PrimaryNodePorts(k)
	var wrong []string
	for _, e := range config.Validate(k) {
		if flag := flagOf(e.Field); flag != "cluster-cidr" { // nkp accepts more ranges than kube-proxy
			wrong = append(wrong, fmt.Sprintf("--%s: %s%s",
				flag, e.ErrorBody(), trace.DidYouMean(c.explicit[flag], enums[flag])))
		}
	}
	if len(wrong) > 0 {
		return usageError("%s", strings.Join(wrong, "; "))
	}
	return nil
}

// flagOf returns the flag for the field that an error names.
func flagOf(path string) string {
	path, _, _ = strings.Cut(path, "[")
	for _, field := range config.KubeProxyFields() {
		if field.Path == path {
			return field.Flag
		}
	}
	return ""
}

// takeFlags sets the wanted fields of kube-proxy's configuration whose flags are set on the command line.
func (c *configuration) takeFlags(f *pflag.FlagSet, wanted func(*config.KubeProxyField) bool) error {
	for _, field := range config.KubeProxyFields() {
		text, explicit := c.explicit[field.Flag]
		if !explicit || !wanted(&field) || f.Lookup(field.Flag) == nil {
			continue
		}
		if field.Flag == "hostname-override" {
			if text = strings.ToLower(strings.TrimSpace(text)); text == "" && c.explicit[field.Flag] != "" {
				return usageError(
					"--hostname-override is blank: name this node's Node object, or leave the flag out")
			}
		}
		if err := field.SetText(c.kubeProxy, text); err != nil {
			return usageError("--%s: %q is not a %s", field.Flag, text, field.Kind())
		}
	}
	return nil
}

// applyKubeProxy sets the flags from kube-proxy's configuration in force.
func (s *settings) applyKubeProxy(f *pflag.FlagSet) error {
	usual := config.NewKubeProxy()
	for _, field := range config.KubeProxyFields() {
		flag := f.Lookup(field.Sets)
		if field.Sets == "" || flag == nil || !field.Counts(s.cfg.kubeProxy) {
			continue
		}
		text, same := field.Text(s.cfg.kubeProxy), field.Text(s.cfg.kubeProxy) == field.Text(usual)
		_, explicit := s.cfg.explicit[field.Sets]
		switch {
		case s.cfg.replaces() && !(explicit && s.cfg.flagWins(field.Sets)):
			if !same {
				s.cfg.origin[field.Sets] = s.cfg.fileField(kubeProxyField(field.Path))
			}
			if err := s.applyFromFile(flag, field.Path, text); err != nil {
				return err
			}
		case explicit || !same: // else the flag has its own default
			if err := setFlag(flag, text); err != nil {
				return usageError("--%s: %w", field.Sets, err)
			}
		}
	}
	return nil
}

// applyFromFile sets a flag to the value of the file's field.
func (s *settings) applyFromFile(flag *pflag.Flag, path, text string) error {
	notUsed := func(why any) {
		s.cfg.warnings = append(s.cfg.warnings,
			fmt.Sprintf("%s: %s is not used: %v", s.cfg.file.Path, kubeProxyField(path), why))
	}
	if flag.Name == "kubeconfig" && text != "" && s.manifests != "" {
		notUsed("Services come from " + s.manifests)
		text = ""
	}
	err := setFlag(flag, text)
	switch {
	case err == nil:
		return nil
	case path == "clusterCIDR": // kube-proxy does not check it in other modes of detectLocalMode
		notUsed(err)
		return setFlag(flag, "")
	}
	return fmt.Errorf("%s: %w", s.cfg.fileField(kubeProxyField(path)), err)
}

// setFlag sets a flag unless it has the value already, because setting some flags appends to their value.
func setFlag(flag *pflag.Flag, text string) error {
	if flag.Value.String() == text {
		return nil
	}
	return flag.Value.Set(text)
}

// kubeProxyField names a field of kube-proxy's configuration in a message.
func kubeProxyField(path string) string { return "KubeProxyConfiguration." + path }

// replaces reports whether the file has a KubeProxyConfiguration, which replaces kube-proxy's flags.
func (c *configuration) replaces() bool { return c.file != nil && c.file.KubeProxy != nil }

// warnUnused adds warnings about flags of the command line that do not apply.
func (c *configuration) warnUnused(f *pflag.FlagSet) {
	var unused, replaced []string
	for _, name := range slices.Sorted(maps.Keys(c.explicit)) {
		_, isUnused := f.Lookup(name).Value.(*unusedValue)
		switch {
		case name == "proxy-mode":
			if c.explicit[name] != "" {
				c.warnings = append(c.warnings,
					fmt.Sprintf("--proxy-mode %s does not choose the data plane of nkp; --mode does",
						c.explicit[name]))
			}
		case c.explicit["proxy-mode"] == "ipvs" &&
			(name == "ipvs-sync-period" || name == "ipvs-min-sync-period"):
		case isUnused:
			unused = append(unused, "--"+name)
		case c.replaces() && ofKubeProxy(name) && !c.flagWins(name):
			replaced = append(replaced, "--"+name)
		}
	}

	if len(unused) > 0 {
		c.warnings = append(c.warnings,
			"flags of kube-proxy that have no effect here: "+strings.Join(unused, ", "))
	}

	if len(replaced) > 0 {
		c.warnings = append(c.warnings,
			fmt.Sprintf("flags overridden by the KubeProxyConfiguration in %s, as in kube-proxy: %s",
				c.file.Path, strings.Join(replaced, ", ")))
	}
}

// ofKubeProxy reports whether a flag has a field in kube-proxy's configuration.
func ofKubeProxy(name string) bool {
	return name == "healthz-port" || name == "metrics-port" ||
		slices.ContainsFunc(config.KubeProxyFields(), func(field config.KubeProxyField) bool {
			return field.Flag == name
		})
}
