package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nkp-proxy/nkp/internal/agent"
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
func (s *settings) completeServices(texts func(*agent.ServiceInfo) []string) cobra.CompletionFunc {
	return func(
		cmd *cobra.Command, _ []string, typed string,
	) (found []cobra.Completion, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		list, err := agent.NewCaller(s.Socket).Services(ctx, agent.ServiceFilter{})
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

// completeServicesFlags lets the shell complete the argument of nkp services and its filters.
func (s *settings) completeServicesFlags(cmd *cobra.Command) {
	complete := s.completeServices(func(i *agent.ServiceInfo) []string {
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
	for name, texts := range map[string]func(*agent.ServiceInfo) []string{
		"name":      func(i *agent.ServiceInfo) []string { return []string{i.Name} },
		"namespace": func(i *agent.ServiceInfo) []string { return []string{i.Namespace} },
		"vip": func(i *agent.ServiceInfo) (texts []string) {
			for j := range i.Frontends {
				texts = append(texts, frontendAddress(&i.Frontends[j]))
			}
			return texts
		},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, s.completeServices(texts)) // the flag exists
	}
}
