// Package command is nkp's command line: it reads flags, calls the other packages, prints, and returns the
// exit status. Start reading at [Main].
package command
