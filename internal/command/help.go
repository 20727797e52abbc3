package command

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Columns of --help: those of the terminal within these bounds; fallback if it is none.
const (
	minColumns      = 60
	maxColumns      = 120
	fallbackColumns = 80
)

// helpColumns returns the width of --help on w.
func helpColumns(w io.Writer) int {
	if width, _, ok := terminalSize(w); ok {
		return min(max(width, minColumns), maxColumns)
	}
	return fallbackColumns
}

// Groups of flags in --help.
const (
	groupSource   = "Source of Services"
	groupNode     = "Node and cluster"
	groupServing  = "Serving"
	groupSwitch   = "Open vSwitch"
	groupLayout   = "Bridge layout"
	groupIPTables = "iptables"
	groupWindows  = "Windows"
	groupKernel   = "Conntrack"
	groupServers  = "Health and metrics"
	groupProcess  = "Process"
	groupCluster  = "Cluster"
)

var groups = []string{ownGroup, groupSource, groupNode, groupServing, groupSwitch, groupLayout,
	groupIPTables, groupWindows, groupKernel, groupServers, groupProcess, groupCluster}

// ownGroup is the group of the flags in no other.
const ownGroup = "Flags"

// groupKey is the annotation of a flag with its group. A flag without one is the command's own.
const groupKey = "nkp_group"

// inGroup marks the flags that are defined until the returned function is called, unless they are in a group
// already.
func inGroup(f *pflag.FlagSet, group string) func() {
	before := map[*pflag.Flag]bool{}
	f.VisitAll(func(flag *pflag.Flag) { before[flag] = true })
	return func() {
		f.VisitAll(func(flag *pflag.Flag) {
			if !before[flag] && flag.Annotations[groupKey] == nil {
				_ = f.SetAnnotation(flag.Name, groupKey, []string{group}) // the flag exists
			}
		})
	}
}

// printFlags writes the listed flags of a command by group.
func printFlags(w io.Writer, cmd *cobra.Command, columns int) {
	for _, group := range groups {
		section := &pflag.FlagSet{}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if of := append(f.Annotations[groupKey], ownGroup); of[0] == group {
				section.AddFlag(f)
			}
		})
		if section.HasAvailableFlags() {
			fmt.Fprintf(w, "\n%s:\n%s", group, section.FlagUsagesWrapped(columns))
		}
	}
}

// printHelp is the help function of all commands.
func printHelp(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	text := strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short+"."))
	fmt.Fprintf(w, "%s\n\n", wrapped(text, helpColumns(w)))
	printUsage(w, cmd)
}

// printUsage writes usage, examples, commands and flags of a command.
func printUsage(w io.Writer, cmd *cobra.Command) {
	line := cmd.UseLine()
	if !cmd.HasParent() {
		line = cmd.DisplayName() + " [COMMAND] [flags]"
	}
	fmt.Fprintf(w, "Usage:\n  %s\n", line)

	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}

	for _, g := range append(cmd.Groups(), &cobra.Group{Title: "Other commands"}) {
		title := "\n" + g.Title + ":\n"
		for _, c := range cmd.Commands() {
			if c.GroupID == g.ID && (c.IsAvailableCommand() || c.Name() == "help") {
				fmt.Fprintf(w, "%s  %-*s %s\n", title, cmd.NamePadding(), c.Name(), c.Short)
				title = ""
			}
		}
	}

	if cmd.HasParent() {
		printFlags(w, cmd, helpColumns(w))
		return
	}

	if cmd.Flags().Lookup("bridge") != nil {
		fmt.Fprint(w, "\nWithout a command, flags are those of \"nkp run\".")
	}
	fmt.Fprint(w, "\nEvery command has --help.\n")
}

// wrapped breaks the lines of a text at width. Lines that follow each other are one paragraph; an indented
// line stays as it is.
func wrapped(text string, width int) string {
	out := []string{""}
	for line := range strings.SplitSeq(text, "\n") {
		if last := out[len(out)-1]; line == "" || strings.HasPrefix(line, " ") {
			out = append(out, line)
			continue
		} else if strings.HasPrefix(last, " ") || last == "" {
			out = append(out, "")
		}
		for word := range strings.FieldsSeq(line) {
			last := &out[len(out)-1]
			if *last != "" && utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) > width {
				out = append(out, word)
			} else {
				*last = strings.TrimSpace(*last + " " + word)
			}
		}
	}
	return strings.Join(out[1:], "\n")
}
