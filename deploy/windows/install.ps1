<#
.SYNOPSIS
Installs nkp as a Windows service, or removes it.
.DESCRIPTION
Copies nkp.exe, registers it with the Service Control Manager (nkp windows-service install: it starts with the system, after
HNS, and is started again if it fails), opens the health check's port in the firewall and starts it. Installing again
upgrades in place: the load balancers in HNS stay and serve meanwhile. A kube-proxy service is stopped and set to start by
hand only if -ReplaceKubeProxy is given; nkp takes over its load balancers.

Run it as Administrator. Everything after the named parameters is passed to "nkp run".
.EXAMPLE
.\install.ps1 -Binary .\nkp-windows-amd64.exe --kubeconfig C:\k\config --network-name Calico --hostname-override $env:COMPUTERNAME.ToLower()
.EXAMPLE
.\install.ps1 -Binary .\nkp-windows-amd64.exe -ReplaceKubeProxy --config C:\k\nkp.yaml
.EXAMPLE
.\install.ps1 -Uninstall -Cleanup
#>
[CmdletBinding(PositionalBinding = $false)]
param(
    # The program to install.
    [string] $Binary = (Join-Path $PSScriptRoot 'nkp-windows-amd64.exe'),
    # Where it is copied to.
    [string] $Directory = (Join-Path $env:ProgramFiles 'nkp'),
    # Services that must run first, such as the one of the CNI plugin.
    [string[]] $DependsOn = @('hns'),
    # Stops the service kube-proxy, and keeps it from starting with the system.
    [switch] $ReplaceKubeProxy,
    # Removes the service and the program instead.
    [switch] $Uninstall,
    # With -Uninstall: also removes the load balancers that nkp has made in HNS.
    [switch] $Cleanup,
    # Flags of nkp run.
    [Parameter(ValueFromRemainingArguments = $true)]
    [string[]] $Flags = @()
)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'

$service = 'nkp'
$rule = 'nkp-health'
$program = Join-Path $Directory 'nkp.exe'

function Invoke-Nkp {
    & $program @args
    if ($LASTEXITCODE -ne 0) { throw "nkp $args ended with exit status $LASTEXITCODE" }
}

$identity = [Security.Principal.WindowsPrincipal][Security.Principal.WindowsIdentity]::GetCurrent()
if (-not $identity.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
    throw 'Run this as Administrator.'
}

# An installed nkp is unregistered first: its flags may have changed, and a running program cannot be replaced.
if (Get-Service -Name $service -ErrorAction SilentlyContinue) {
    Invoke-Nkp windows-service uninstall
}

if ($Uninstall) {
    if ($Cleanup) { Invoke-Nkp cleanup --mode windows }
    Remove-NetFirewallRule -Name $rule -ErrorAction SilentlyContinue
    Remove-Item -Path $program -Force -ErrorAction SilentlyContinue
    return
}

if ($ReplaceKubeProxy -and (Get-Service -Name 'kube-proxy' -ErrorAction SilentlyContinue)) {
    Stop-Service -Name 'kube-proxy'
    Set-Service -Name 'kube-proxy' -StartupType Manual
}

New-Item -ItemType Directory -Path $Directory -Force | Out-Null
Copy-Item -Path $Binary -Destination $program -Force
Invoke-Nkp version

Invoke-Nkp windows-service install --depends-on ($DependsOn -join ',') -- @Flags

if (-not (Get-NetFirewallRule -Name $rule -ErrorAction SilentlyContinue)) {
    New-NetFirewallRule -Name $rule -DisplayName 'nkp health checks' -Direction Inbound -Action Allow -Protocol TCP -Program $program | Out-Null
}

Start-Service -Name $service
Get-Service -Name $service
