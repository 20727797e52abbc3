package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
)

const (
	apiServerURL = "https://127.0.0.1:6443"
	token        = "e2e-token" // of the user who may do everything; all others have the rights that RBAC grants
)

// apiServerFlags are kube-apiserver's. Pods need no service account, but service accounts have tokens.
func apiServerFlags(dir string) []string {
	key := filepath.Join(dir, "service-account.key")
	return []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0",
		"--secure-port=6443",
		"--advertise-address=127.0.0.1", // a namespace without default route has no other
		"--endpoint-reconciler-type=none",
		"--cert-dir=" + filepath.Join(dir, "certs"),
		"--token-auth-file=" + filepath.Join(dir, "tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true", // as kubeadm and k3s have it
		"--service-cluster-ip-range=40.0.0.0/16,fd00:40::/112",
		"--service-node-port-range=30000-32767",
	}
}

// writeKeys makes what the flags name, if it is not there from an earlier run.
func writeKeys(dir string) error {
	path := filepath.Join(dir, "service-account.key")
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if err := os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte(token+",admin,1,system:masters\n"), 0o600); err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(block), 0o600)
}
