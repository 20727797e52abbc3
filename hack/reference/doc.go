// Command reference writes docs/configuration.md from the code: the flags of every command, what nkp does with each field of
// kube-proxy's configuration (the table of package config), and the fields of NkpConfiguration with their doc comments.
// "make docs" runs it; a test fails if the file is not what it would write.
package main
