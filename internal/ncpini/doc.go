// Package ncpini reads ncp.ini, the configuration file of the NSX Container Plugin, its node agent and its
// kube proxy. It has the syntax of oslo.config, and the few options that nkp shares with the NSX kube proxy;
// it changes no setting. Start reading at [Load].
package ncpini
