package command

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/api"
	"github.com/nkp-proxy/nkp/k8s"
)

// completeFlags lets the shell complete the values of flags that take one of a few, in all commands below
// cmd.
func completeFlags(cmd *cobra.Command) {
	for name, values := range enums {
		if cmd.Flags().Lookup(name) != nil {
			// the flag exists
			_ = cmd.RegisterFlagCompletionFunc(name,
				cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
}

// completionWait bounds how long a shell waits for the agent at a press of the tab key.
const completionWait = 500 * time.Millisecond

// completeServices returns a completion with what texts returns for each Service that the running agent
// serves; nothing if none answers.
func (s *settings) completeServices(texts func(*api.ServiceInfo) []string) cobra.CompletionFunc {
	return func(
		cmd *cobra.Command, _ []string, typed string,
	) (found []cobra.Completion, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		list, err := api.NewCaller(s.Socket).Services(ctx, api.ServiceFilter{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for i := range list.Services {
			for _, text := range texts(&list.Services[i]) {
				if strings.HasPrefix(text, typed) {
					found = append(found, text)
				}
			}
		}
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeService lets the shell complete a command's argument, the name of a Service.
func (s *settings) completeService(cmd *cobra.Command) {
	complete := s.completeServices(func(i *api.ServiceInfo) []string {
		return []string{i.Namespace + "/" + i.Name}
	})
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command, args []string, typed string,
	) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, typed)
	}
}

// completeFilters lets the shell complete the filters of nkp services.
func (s *settings) completeFilters(cmd *cobra.Command) {
	s.completeFlag(cmd, "name", func(i *api.ServiceInfo) []string { return []string{i.Name} })
	s.completeFlag(cmd, "namespace", func(i *api.ServiceInfo) []string { return []string{i.Namespace} })
	s.completeFlag(cmd, "vip", func(i *api.ServiceInfo) (texts []string) {
		for j := range i.Frontends {
			texts = append(texts, frontendAddress(&i.Frontends[j]))
		}
		return texts
	})
}

// completeEnds lets the shell complete the source and the destination of nkp trace by name: the node's pods
// that are endpoints, and Service ports.
func (s *settings) completeEnds(cmd *cobra.Command) {
	s.completeFlag(cmd, "from", func(i *api.ServiceInfo) (texts []string) {
		for j := range i.Endpoints {
			if e := &i.Endpoints[j]; e.Pod != "" && e.Local {
				texts = append(texts, "pod/"+e.Pod)
			}
		}
		return texts
	})
	s.completeFlag(cmd, "to", func(i *api.ServiceInfo) (texts []string) {
		port := i.Port
		for j := range i.Frontends {
			if f := &i.Frontends[j]; port == "" && f.Type == string(k8s.ClusterIP) {
				port = strconv.Itoa(int(f.Port))
			}
		}
		if port == "" {
			return nil
		}
		return []string{"svc/" + i.Namespace + "/" + i.Name + ":" + port}
	})
}

// completeFlag lets the shell complete a flag of a command, which must have it.
func (s *settings) completeFlag(cmd *cobra.Command, name string, texts func(*api.ServiceInfo) []string) {
	_ = cmd.RegisterFlagCompletionFunc(name, s.completeServices(texts)) // fails only without the flag
}
