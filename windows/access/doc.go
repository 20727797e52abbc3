// Package access checks who may change a file, a directory or a named pipe of Windows. %ProgramData% and the
// names of pipes are open to every user, so what nkp finds under one of its names may be another user's.
//
// Start reading at CheckPath, and at MakeDir for the directory of nkp's own files.
package access
