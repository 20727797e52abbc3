// Package command is nkp's command line: it reads flags, calls the other packages, prints, and gives the exit
// status. Start reading at [Main].
package command
