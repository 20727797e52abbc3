// Package windows tests the Windows data plane in its real form: the Windows binary, through hcsshim and the DLL calls, under
// Wine on Linux, against the fake HNS of test/hnsfake; and beside it kube-proxy.exe, unmodified, with the same objects.
//
// It is a module of its own because of kube-proxy. It needs Debian's wine64 and gcc-mingw-w64-x86-64-win32; make test-windows installs
// them. What a real Windows host does beyond what the fake implements is not tested here.
//
// Start reading at package winebed, which makes the bed.
package windows
