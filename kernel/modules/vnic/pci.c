// SPDX-License-Identifier: GPL-2.0
/*
 * vnic: pairs that use a PCI device as their DMA device
 *
 * Pairs can use a PCI device without another driver as their parent: the IOMMU then
 * translates with its requester ID, and the pairs are removed together with it. The
 * device itself is not accessed. This driver has no ID table; new_id or
 * driver_override assigns a device to it.
 */

#include <linux/dma-mapping.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>

#include "vnic.h"

/* The PCI device, if there is one, and its network devices; both under RTNL */
static struct device *vnic_pci_device;
static LIST_HEAD(vnic_pci_devices);

/**
 * vnic_pci_parent() - get the parent of new pairs
 *
 * Return: the PCI device, NULL if there is none.
 */
struct device *vnic_pci_parent(void)
{
	ASSERT_RTNL();

	return vnic_pci_device;
}

/**
 * vnic_pci_add() - add a network device that has to be removed with its parent
 * @dev: the device
 */
void vnic_pci_add(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);

	INIT_LIST_HEAD(&vnic->siblings);
	if (vnic_pci_device && dev->dev.parent == vnic_pci_device)
		list_add(&vnic->siblings, &vnic_pci_devices);
}

/**
 * vnic_pci_del() - undo vnic_pci_add()
 * @dev: the device
 */
void vnic_pci_del(struct net_device *dev)
{
	struct vnic *vnic = netdev_priv(dev);

	list_del_init(&vnic->siblings);
}

static int vnic_pci_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int err;

	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);

	rtnl_lock();
	if (vnic_pci_device)
		err = -EBUSY;
	else
		vnic_pci_device = &pdev->dev;
	rtnl_unlock();

	return err;
}

static void vnic_pci_remove(struct pci_dev *pdev)
{
	struct vnic *vnic;
	LIST_HEAD(list);

	rtnl_lock();
	vnic_pci_device = NULL;
	list_for_each_entry(vnic, &vnic_pci_devices, siblings)
		vnic_dellink(vnic->rq[0].dev, &list);
	unregister_netdevice_many(&list);
	rtnl_unlock();
}

static struct pci_driver vnic_pci_driver = {
	.name		= VNIC_NAME,
	.probe		= vnic_pci_probe,
	.remove		= vnic_pci_remove,
};

/**
 * vnic_pci_register() - register the PCI driver
 *
 * Return: 0 or the error of pci_register_driver().
 */
int vnic_pci_register(void)
{
	return pci_register_driver(&vnic_pci_driver);
}

/** vnic_pci_unregister() - unregister the PCI driver and remove its pairs */
void vnic_pci_unregister(void)
{
	pci_unregister_driver(&vnic_pci_driver);
}
